/** Colours by name: a name has the same one on both pages, and in each month. */

const MODES = ["dedicated", "passthrough", "mig", "vgpu", "mig_vgpu", "time_slicing", "mps", "partition"];
const COUNT = 8;

export const ofMode = (mode: string) => `var(--c${(Math.max(0, MODES.indexOf(mode)) % COUNT) + 1})`;

/** The names that are shown, each with a colour of its own as long as there are some. */
export function ofNames(names: Iterable<string>): (name: string) => string {
  const sorted = [...new Set(names)].sort();
  return (name) => {
    const at = sorted.indexOf(name);
    return at >= 0 && at < COUNT ? `var(--c${at + 1})` : "var(--c-other)";
  };
}

const STATES: Record<string, string> = {
  idle: "url(#hatch-idle)",
  stranded: "url(#hatch-stranded)",
  unknown: "url(#hatch-unknown)",
  held_unused: "var(--c-soft)",
  unhealthy: "var(--c-bad)",
  maintenance: "var(--c-other)",
};

export const ofState = (state: string) => STATES[state] ?? "var(--c-other)";
