/** Does what was asked for, and tells the user when the server will not. */
import type { TranslationBundle } from '@jupyterlab/translation';

import { Refused } from './request';

/** The sentence for an error of a request. */
export function reasonOf(error: unknown, trans: TranslationBundle): string {
  return error instanceof Refused && error.message
    ? `${error.message} ${error.hint}`.trim()
    : trans.__('The server did not do it.');
}

/** Resolves when it is done or was refused; what is refused is told by `tell`. */
export async function told(
  asked: Promise<unknown>,
  trans: TranslationBundle,
  tell: ((reason: string) => void) | undefined
): Promise<void> {
  try {
    await asked;
  } catch (error) {
    tell?.(reasonOf(error, trans));
  }
}
