/**
 * What a GPU is divided into, as the service bills it, in the order and at the places where it is drawn. Shares are the
 * service's; they become numbers here for widths and colours alone.
 */
import type { Layout, Piece } from "../api/client";

/** A number from an exact fraction: `15/112`. */
export function fraction(text: string): number {
  const [over = "0", under = "1"] = text.split("/");
  return Number(over) / Number(under);
}

/** Fields of evidence, from what a person calls the holder by to what a machine does. */
const HOLDER = ["workload", "pod", "vm", "job", "process", "cgroup", "user"];

export function holderOf({ evidence }: Piece): string {
  const name = HOLDER.map((field) => evidence[field]).find((text) => text !== undefined) ?? Object.values(evidence)[0] ?? "";
  return evidence.namespace !== undefined ? `${evidence.namespace}/${name}` : name;
}

/** How much of its compute a piece used; above 1 where it took more than it holds, null where it was not measured. */
export const useOf = ({ utilization }: Piece): number | null => (utilization === null ? null : fraction(utilization));

export interface Drawn {
  piece: Piece;
  /** Of the whole GPU, 0 to 1: where it begins, and how much it is. */
  start: number;
  share: number;
}

/** What no slice covers comes last, and of that the most useful first. */
const REST = ["idle", "stranded", "maintenance", "unhealthy", "unknown"];

export function drawn(layout: Layout): Drawn[] {
  // GPU instances lie where they begin. What has no place keeps the service's order.
  const rank = ({ slice, start, state }: Piece) => (start !== null ? start : slice !== null ? 1_000 : 2_000 + REST.indexOf(state));
  let start = 0;
  return [...layout.pieces]
    .sort((a, b) => rank(a) - rank(b))
    .map((piece) => {
      const share = fraction(piece.share);
      start += share;
      return { piece, start: start - share, share };
    });
}

/** A piece for as long as nothing of it changed. */
export interface Run extends Drawn {
  from: number;
  to: number;
}

/** From layouts in order of time to runs. Use changes all the time: it ends a run only where it is looked at. */
export function runsOf(layouts: Layout[], byUse: boolean): Run[] {
  const runs: Run[] = [];
  let open = new Map<string, Run>();
  for (const layout of layouts) {
    const [from, to] = [Date.parse(layout.from), Date.parse(layout.to)];
    const next = new Map<string, Run>();
    for (const each of drawn(layout)) {
      const { piece } = each;
      const key = JSON.stringify([
        each.start.toFixed(6), piece.share, piece.state, piece.mode, piece.slice, piece.slice_id, piece.tenant, piece.project, piece.evidence, piece.estimated,
        byUse ? piece.utilization : null,
      ]);
      const goesOn = open.get(key);
      const run = goesOn && goesOn.to === from ? goesOn : { ...each, from, to };
      if (run !== goesOn) runs.push(run);
      run.to = to;
      next.set(key, run);
    }
    open = next;
  }
  return runs;
}

/** The layout at an instant, of those of one device. */
export const layoutAt = (layouts: Layout[], at: number) =>
  layouts.find((each) => Date.parse(each.from) <= at && at < Date.parse(each.to));
