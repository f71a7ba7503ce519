import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  {
    ignores: [
      '.venv/**',
      '**/node_modules/**',
      'lib/**',
      'coverage/**',
      'notebookos_ext/labextension/**',
      'ui-tests/test-results/**',
      'ui-tests/playwright-report/**'
    ]
  },
  ...tseslint.configs.recommended,
  jupyter.configs.recommended,
  prettier,
  {
    files: ['**/*.{ts,tsx}'],
    rules: {
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-unused-vars': ['error', { args: 'none' }],
      // JupyterLab's own idiom for a class's options and for lists of ids.
      '@typescript-eslint/no-namespace': 'off',
      // The whole bundle is smaller than what lazy loading is for.
      'jupyter/prefer-lazy-imports': 'off',
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'no-console': 'error',
      'prefer-arrow-callback': 'error'
    }
  },
  {
    // Tests break values on purpose.
    files: ['src/__tests__/**'],
    rules: { '@typescript-eslint/no-explicit-any': 'off' }
  },
  {
    // Galata's helpers know JupyterLab's page only.
    files: ['ui-tests/tests/notebook7.spec.ts'],
    rules: { 'jupyter/galata-prefer-notebook-cell-helper': 'off' }
  },
  {
    files: ['**/*.js'],
    rules: { '@typescript-eslint/no-require-imports': 'off' }
  }
);
