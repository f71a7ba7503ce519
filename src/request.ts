/** One REST call to our endpoints, errors included. */
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';

import { decodeError } from './wire';

const ROOT = 'notebookos/api';

/** The server cannot be reached at all; it may come back. */
export class Unreachable extends Error {
  constructor() {
    super('The Jupyter server cannot be reached.');
    this.name = 'Unreachable';
  }
}

/** The server answered with an error; the message is empty when it did not come from our side. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string
  ) {
    super(message);
    this.name = 'Refused';
  }
}

/**
 * Calls `notebookos/api/<path>` and gives the decoded body.
 *
 * @throws Unreachable when there is no connection, Refused when the server says no,
 * DecodeError when the answer has another shape.
 */
export async function request<T>(
  path: string,
  decode: (value: unknown) => T,
  settings: ServerConnection.ISettings,
  init: RequestInit = {}
): Promise<T> {
  const url = URLExt.join(settings.baseUrl, ROOT, path);
  let response: Response;
  try {
    response = await ServerConnection.makeRequest(url, init, settings);
  } catch (error) {
    if (error instanceof ServerConnection.NetworkError) {
      throw new Unreachable();
    }
    throw error;
  }
  const body = await response.text();
  if (!response.ok) {
    throw refusal(response, body);
  }
  return decode(JSON.parse(body));
}

function refusal(response: Response, body: string): Refused {
  try {
    const { message, hint } = decodeError(JSON.parse(body));
    return new Refused(response.status, message, hint);
  } catch {
    // Not one of our answers: a proxy's page, or Jupyter's own 404.
    return new Refused(response.status, '', '');
  }
}
