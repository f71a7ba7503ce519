/**
 * Browser tests with Debian's chromium.
 *
 * UI_TEST_PORT: the server's port. CHROMIUM: another browser. UPDATE_SCREENSHOT: write
 * docs/screenshot.png anew. Nothing is downloaded, and no server of an earlier run is used again:
 * it would quietly test an old build.
 */
const baseConfig = require('@jupyterlab/galata/lib/playwright-config');

const port = process.env.UI_TEST_PORT ?? '8988';
const baseURL = `http://127.0.0.1:${port}`;

module.exports = {
  ...baseConfig,
  testDir: './tests',
  reporter: [['list']],
  // A cell may wait for a GPU, a replica and a busy machine; only a hang takes this long.
  timeout: 600000,
  expect: { timeout: 60000 },
  workers: 1,
  // A test that passes only the second time is called flaky in the summary.
  retries: 1,
  forbidOnly: Boolean(process.env.CI),
  use: {
    ...baseConfig.use,
    baseURL,
    viewport: { width: 1600, height: 900 },
    // Playwright's own ffmpeg, which videos need, is not installed.
    video: 'off',
    trace: 'retain-on-failure',
    screenshot: 'only-on-failure',
    launchOptions: {
      executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
      args: [
        '--no-sandbox',
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync'
      ]
    }
  },
  webServer: {
    command: 'exec jupyter lab --config jupyter_server_test_config.py',
    env: { UI_TEST_PORT: port },
    url: `${baseURL}/lab`,
    timeout: 120000,
    reuseExistingServer: false,
    // The server ends its kernels and host agents when it is told to, not when it is killed.
    gracefulShutdown: { signal: 'SIGTERM', timeout: 60000 },
    stdout: 'ignore',
    stderr: process.env.UI_TEST_SERVER_LOG ? 'pipe' : 'ignore'
  }
};
