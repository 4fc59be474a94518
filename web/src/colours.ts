/** Colours by name: a name has the same one on both pages, and in each month. */

/** What time can be, in the order in which it is told. */
export const STATES = ["used", "held_unused", "idle", "stranded", "unhealthy", "maintenance", "unknown", "rounding"];

const MODES = ["dedicated", "passthrough", "mig", "vgpu", "mig_vgpu", "time_slicing", "mps", "partition"];
const HUES = 8;
/** Of each hue: as it is, darker, lighter. With more, a reader would look for differences that eyes do not see. */
const SHADES = [(hue: string) => hue, (hue: string) => `color-mix(in srgb, ${hue}, black 38%)`, (hue: string) => `color-mix(in srgb, ${hue}, white 48%)`];

export const ofMode = (mode: string) => `var(--c${(Math.max(0, MODES.indexOf(mode)) % HUES) + 1})`;

/** The names that are shown, by their order each with a colour of its own, as long as there are some. */
export function ofNames(names: Iterable<string>): (name: string) => string {
  const sorted = [...new Set(names)].sort();
  return (name) => {
    const at = sorted.indexOf(name);
    const shade = SHADES[Math.floor(at / HUES)];
    return at >= 0 && shade ? shade(`var(--c${(at % HUES) + 1})`) : "var(--c-other)";
  };
}

/** Told apart by pattern too: not all readers see colours, and not all paper has them. */
const FILLS: Record<string, string> = {
  idle: "url(#hatch-idle)",
  stranded: "url(#hatch-stranded)",
  unknown: "url(#hatch-unknown)",
  held_unused: "var(--c-soft)",
  unhealthy: "url(#hatch-unhealthy)",
  maintenance: "url(#hatch-maintenance)",
};

export const ofState = (state: string) => FILLS[state] ?? "var(--c-other)";
