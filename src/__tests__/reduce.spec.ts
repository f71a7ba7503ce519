import { INITIAL, reduce } from '../reduce';
import { cluster } from './samples';

const connected = reduce(INITIAL, { kind: 'snapshot', cluster: cluster() });

describe('reduce', () => {
  it('takes a snapshot', () => {
    expect(connected.connection.kind).toBe('connected');
    expect(connected.cluster?.hosts).toHaveLength(3);
  });

  it('keeps what was known while disconnected, and since when', () => {
    const lost = reduce(connected, { kind: 'unreachable', at: 100 });
    expect(lost.connection).toEqual({ kind: 'disconnected', since: 100 });
    expect(lost.cluster).toBe(connected.cluster);
    expect(reduce(lost, { kind: 'unreachable', at: 130 })).toBe(lost);
  });

  it('recovers with the next snapshot', () => {
    const lost = reduce(connected, { kind: 'unreachable', at: 100 });
    const back = reduce(lost, { kind: 'snapshot', cluster: cluster() });
    expect(back.connection.kind).toBe('connected');
  });

  it('tells a missing server side from a failing one', () => {
    const refused = { kind: 'refused', message: 'm', hint: 'h' } as const;
    expect(reduce(connected, { ...refused, status: 404 })).toEqual({
      connection: { kind: 'missing' },
      cluster: null
    });
    expect(reduce(connected, { ...refused, status: 503 })).toEqual({
      connection: { kind: 'failed', status: 503, message: 'm', hint: 'h' },
      cluster: connected.cluster
    });
  });

  it('says that an answer was not understood', () => {
    const next = reduce(connected, { kind: 'mismatch', message: 'x' });
    expect(next.connection).toEqual({ kind: 'mismatched', message: 'x' });
    expect(next.cluster).toBe(connected.cluster);
  });

  it('does not let an overtaken answer turn time back', () => {
    const older = { ...cluster(), at: cluster().at - 1, policy: 'older' };
    const next = reduce(connected, { kind: 'snapshot', cluster: older });
    expect(next.cluster?.policy).toBe(connected.cluster?.policy);
  });

  it('follows a server whose clock was set back', () => {
    const older = { ...cluster(), at: cluster().at - 3600, policy: 'older' };
    const next = reduce(connected, { kind: 'snapshot', cluster: older });
    expect(next.cluster?.policy).toBe('older');
  });
});
