const jupyterLab = require('@jupyterlab/testutils/lib/jest-config');

/** Packages that ship as ES modules only, so that jest has to translate them. */
const esModules = [
  '@codemirror',
  '@jupyter/',
  '@jupyterlab/',
  '@microsoft',
  '@rjsf',
  'exenv-es6',
  'lib0',
  'nanoid',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs'
].join('|');

const base = jupyterLab(__dirname);

module.exports = {
  ...base,
  automock: false,
  collectCoverageFrom: [
    'src/**/*.{ts,tsx}',
    '!src/**/*.d.ts',
    '!src/__tests__/**'
  ],
  coverageReporters: ['lcov', 'text'],
  modulePathIgnorePatterns: [
    '<rootDir>/notebookos_ext/labextension',
    '<rootDir>/.venv'
  ],
  reporters: ['default'],
  testPathIgnorePatterns: ['/node_modules/', '/lib/', '/ui-tests/', '/.venv/'],
  testRegex: 'src/.*\\.spec\\.tsx?$',
  transformIgnorePatterns: [`/node_modules/(?!${esModules}).+`]
};
