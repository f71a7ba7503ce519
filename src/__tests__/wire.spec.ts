import { DecodeError } from '../decode';
import {
  decodeCluster,
  decodeError,
  decodeSettingsResult,
  decodeUsage
} from '../wire';
import { sample } from './samples';

describe('wire', () => {
  // Equal, so that a field that only one side knows is noticed.
  it.each([
    ['cluster', decodeCluster],
    ['cluster-empty', decodeCluster],
    ['settings-result', decodeSettingsResult],
    ['usage', decodeUsage],
    ['error', decodeError]
  ] as [string, (value: unknown) => unknown][])(
    'reads the whole sample %s',
    (name, decode) => {
      expect(decode(sample(name))).toEqual(sample(name));
    }
  );

  it('ignores fields that a newer server adds', () => {
    const newer = { ...(sample('error') as object), trace: 'x' };
    expect(decodeError(newer)).toEqual(sample('error'));
  });

  it('names the place of a wrong value', () => {
    const broken = sample('cluster') as any;
    broken.hosts[1].devices[0].index = 'two';
    expect(() => decodeCluster(broken)).toThrow(
      'hosts[1].devices[0].index: a number was expected, not string'
    );
  });

  it('refuses a state that it does not know', () => {
    const broken = sample('cluster') as any;
    broken.kernels[0].state = 'dreaming';
    expect(() => decodeCluster(broken)).toThrow(DecodeError);
  });

  it('refuses a page instead of JSON values', () => {
    expect(() => decodeCluster('<html>')).toThrow(
      'the answer: an object was expected, not string'
    );
  });
});
