/**
 * Small decoders that check JSON from the server and give it a type.
 *
 * They know nothing of this project's shapes. Unknown fields are ignored, so that an older front
 * end works with a newer server.
 */

/** The value is not of the shape that its decoder describes. */
export class DecodeError extends Error {
  constructor(path: string, expected: string, value: unknown) {
    const found = value === null ? 'null' : typeof value;
    super(`${path || 'the answer'}: ${expected} was expected, not ${found}`);
    this.name = 'DecodeError';
  }
}

/** Checks a value; `path` names its place for the error. */
export type Decoder<T> = (value: unknown, path: string) => T;

/** What a decoder gives. */
export type Decoded<D> = D extends Decoder<infer T> ? T : never;

export const text: Decoder<string> = (value, path) => {
  if (typeof value !== 'string') {
    throw new DecodeError(path, 'a text', value);
  }
  return value;
};

export const number: Decoder<number> = (value, path) => {
  if (typeof value !== 'number') {
    throw new DecodeError(path, 'a number', value);
  }
  return value;
};

export const flag: Decoder<boolean> = (value, path) => {
  if (typeof value !== 'boolean') {
    throw new DecodeError(path, 'true or false', value);
  }
  return value;
};

/** One of a few texts. */
export function oneOf<T extends string>(...choices: T[]): Decoder<T> {
  return (value, path) => {
    const found = choices.find(choice => choice === value);
    if (found === undefined) {
      throw new DecodeError(path, `one of ${choices.join(', ')}`, value);
    }
    return found;
  };
}

/** The value, or null where it cannot be had. */
export function nullable<T>(inner: Decoder<T>): Decoder<T | null> {
  return (value, path) => (value === null ? null : inner(value, path));
}

export function list<T>(inner: Decoder<T>): Decoder<T[]> {
  return (value, path) => {
    if (!Array.isArray(value)) {
      throw new DecodeError(path, 'a list', value);
    }
    return value.map((item, index) => inner(item, `${path}[${index}]`));
  };
}

/** Any names, all with values of one kind. */
export function dictionary<T>(inner: Decoder<T>): Decoder<Record<string, T>> {
  return (value, path) => {
    const result: Record<string, T> = {};
    for (const [name, item] of Object.entries(asObject(value, path))) {
      result[name] = inner(item, `${path}.${name}`);
    }
    return result;
  };
}

/** Fixed names, each with a decoder of its own. */
export function record<F extends Record<string, Decoder<unknown>>>(
  fields: F
): Decoder<{ [K in keyof F]: Decoded<F[K]> }> {
  return (value, path) => {
    const source = asObject(value, path);
    const result: Record<string, unknown> = {};
    for (const [name, inner] of Object.entries(fields)) {
      result[name] = inner(source[name], path ? `${path}.${name}` : name);
    }
    return result as { [K in keyof F]: Decoded<F[K]> };
  };
}

function asObject(value: unknown, path: string): Record<string, unknown> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new DecodeError(path, 'an object', value);
  }
  return value as Record<string, unknown>;
}
