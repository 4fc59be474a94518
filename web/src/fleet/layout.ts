/**
 * From what was reported of a GPU at an instant to the pieces that are drawn. Shares are for widths alone: what is billed,
 * the service computes.
 */
import type { Device, Window_ } from "../api/client";

export interface Piece {
  key: string;
  kind: "held" | "idle" | "stranded" | "unsliced" | "unknown" | "out";
  /** Of the whole GPU, 0 to 1. */
  share: number;
  slice: string;
  mode: string;
  tenant: string | null;
  holder: string;
  /** 0 to 1; null where it was not measured. */
  use: number | null;
}

/** Fields of evidence, from what a person calls the holder by to what a machine does. */
const HOLDER = ["workload", "pod", "vm", "job", "process", "cgroup", "user"];

export function holderOf(window: Window_): string {
  const { evidence } = window;
  const name = HOLDER.map((field) => evidence[field]).find((text) => text !== undefined) ?? Object.values(evidence)[0] ?? "";
  return evidence.namespace !== undefined ? `${evidence.namespace}/${name}` : name;
}

/** Compute slices of a profile such as `3g.40gb`, and its memory. */
function profileOf(slice: string): { compute: number; gib: number } | null {
  const found = /(\d+)g\.(\d+)gb/.exec(slice);
  return found ? { compute: Number(found[1]), gib: Number(found[2]) } : null;
}

function shareOf(slice: string, memoryGib: number | null, siblings: number): number {
  const profile = profileOf(slice);
  // MIG is cut in eighths of the memory; a profile's name is rounded.
  if (profile) {
    const whole = memoryGib ? Math.max(1, Math.round((8 * profile.gib) / memoryGib)) / 8 : profile.compute / 8;
    // A compute instance is a part of its GPU instance: `1c.3g.40gb` is a third of one.
    const part = /(\d+)c\./.exec(slice);
    return part ? (whole * Number(part[1])) / profile.compute : whole;
  }
  const ppm = /(\d+)ppm$/.exec(slice);
  if (ppm) return Number(ppm[1]) / 1e6;
  const one = /1of(\d+)$/.exec(slice);
  if (one) return 1 / Number(one[1]);
  const percent = /(\d+)percent$/.exec(slice);
  if (percent) return Number(percent[1]) / 100;
  const vgpu = /-(\d+)[A-Z]/.exec(slice);
  if (vgpu && memoryGib) return Math.min(1, Number(vgpu[1]) / memoryGib);
  return slice === "device" ? 1 : 1 / Math.max(1, siblings);
}

const same = (a: Window_, b: Window_) =>
  a.slice_id !== null || b.slice_id !== null ? a.slice_id === b.slice_id : a.slice === b.slice && holderOf(a) === holderOf(b);

export function serviceAt(device: Device, at: number) {
  return device.in_service.find((each) => Date.parse(each.from) <= at && (each.to === null || at < Date.parse(each.to)));
}

/** What a GPU was divided into at an instant. `windows` are all of its node that meet it. */
export function piecesOf(device: Device, windows: Window_[], at: number): Piece[] {
  const blank = { slice: "", mode: "", tenant: null, holder: "", use: null, share: 1 };
  const service = serviceAt(device, at);
  if (!service) return [{ ...blank, key: "out", kind: "out" }];
  const own = windows.filter((each) => each.gpu_uuid === device.gpu_uuid && Date.parse(each.from) <= at && at < Date.parse(each.to));
  const held = own.filter((each) => each.kind === "held");
  const existed = own.filter((each) => each.kind === "existed");
  if (held.length + existed.length === 0 && Date.parse(service.covered_to) <= at) return [{ ...blank, key: "unknown", kind: "unknown" }];
  const gib = device.gpu_memory_mib === null ? null : device.gpu_memory_mib / 1024;
  const pieces: Piece[] = [];
  const share = (slice: string) => shareOf(slice, gib, Math.max(held.length, existed.length));
  held.forEach((each, index) => {
    const measured = own.find((other) => other.kind === "measured" && other.active_nanos !== null && same(each, other));
    const nanos = measured ? (Date.parse(measured.to) - Date.parse(measured.from)) * 1e6 : 0;
    pieces.push({
      key: `${each.slice_id ?? each.slice} ${index}`,
      kind: "held",
      share: share(each.slice),
      slice: each.slice,
      mode: each.mode,
      tenant: each.tenant,
      holder: holderOf(each),
      use: measured && nanos > 0 ? Math.min(1, (measured.active_nanos ?? 0) / nanos) : null,
    });
  });
  const ids = new Set(held.map((each) => each.slice_id));
  for (const each of existed) {
    if (each.slice_id === null || ids.has(each.slice_id)) continue;
    pieces.push({ ...blank, key: each.slice_id, kind: "idle", share: share(each.slice), slice: each.slice, mode: each.mode });
  }
  pieces.sort((a, b) => b.share - a.share || a.slice.localeCompare(b.slice) || a.key.localeCompare(b.key, "en", { numeric: true }));
  const sum = pieces.reduce((all, piece) => all + piece.share, 0);
  if (sum > 1) return pieces.map((piece) => ({ ...piece, share: piece.share / sum }));
  if (sum < 0.9999) {
    const compute = pieces.reduce((all, piece) => all + (profileOf(piece.slice)?.compute ?? 0), 0);
    // Seven compute slices are all there are: no further instance fits. Where some are left, where the others lie decides.
    const kind = compute >= 7 ? "stranded" : compute > 0 ? "unsliced" : "idle";
    pieces.push({ ...blank, key: "rest", kind, share: 1 - sum });
  }
  return pieces;
}

export interface Held {
  from: number;
  to: number;
  tenant: string | null;
  holder: string;
}
export interface Lane {
  key: string;
  slice: string;
  held: Held[];
}

/** Lanes of a timeline: a slice each; holders at once of slices that have no id get lanes of their own. */
export function lanesOf(windows: Window_[]): Lane[] {
  const lanes: Lane[] = [];
  const ordered = windows.filter((each) => each.kind === "held").sort((a, b) => a.from.localeCompare(b.from));
  for (const each of ordered) {
    const held = { from: Date.parse(each.from), to: Date.parse(each.to), tenant: each.tenant, holder: holderOf(each) };
    const fits = (lane: Lane) => {
      const last = lane.held.at(-1);
      return last === undefined || last.to <= held.from || (last.holder === held.holder && last.from <= held.from);
    };
    const key = each.slice_id ?? each.slice;
    const candidates = lanes.filter((lane) => lane.key === key && fits(lane));
    // A holding is cut at hours and minutes on its way here: it goes on in the lane in which it was.
    const goesOn = candidates.find((lane) => lane.held.at(-1)?.holder === held.holder);
    const lane = goesOn ?? candidates[0];
    const last = lane?.held.at(-1);
    if (lane && last && last.holder === held.holder && last.tenant === held.tenant && held.from <= last.to) {
      last.to = Math.max(last.to, held.to);
    } else if (lane) lane.held.push(held);
    else lanes.push({ key, slice: each.slice, held: [held] });
  }
  return lanes.sort((a, b) => a.slice.localeCompare(b.slice) || a.key.localeCompare(b.key));
}
