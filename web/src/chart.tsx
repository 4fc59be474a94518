/**
 * Pictures in SVG: sharp in print, in the reader's language, and each mark says what it is.
 *
 * Heights are drawn from numbers; what is written comes from the service's texts.
 */
import { useWords } from "./text";

export interface Piece {
  series: string;
  /** For its height alone. */
  size: number;
  title: string;
}
export interface Column {
  key: string;
  label: string;
  pieces: Piece[];
}
export interface Series {
  key: string;
  label: string;
  fill: string;
}

const LINES_MAX = 7;

/** The lines of a scale: round steps, as few as still end close above the value. */
function linesOf(value: number): number[] {
  const least = (value > 0 ? value : 1) / LINES_MAX;
  const unit = 10 ** Math.floor(Math.log10(least));
  const step = ([1, 2, 2.5, 5].find((each) => each * unit >= least) ?? 10) * unit;
  return Array.from({ length: Math.ceil((value > 0 ? value : 1) / step) + 1 }, (_, at) => at * step);
}

/** Hatches for what nobody held: told apart without colours, also in print. */
export function Hatches() {
  return (
    <svg width="0" height="0" className="defs" aria-hidden="true">
      <defs>
        <pattern id="hatch-idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="6" height="6" className="hatch-ground" />
          <rect width="2" height="6" className="hatch-line" />
        </pattern>
        <pattern id="hatch-stranded" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect width="6" height="6" className="hatch-ground" />
          <rect width="1.6" height="6" className="hatch-line strong" />
          <rect width="6" height="1.6" className="hatch-line strong" />
        </pattern>
        <pattern id="hatch-unknown" width="6" height="6" patternUnits="userSpaceOnUse">
          <rect width="6" height="6" className="hatch-ground" />
          <circle cx="2" cy="2" r="1.1" className="hatch-line strong" />
        </pattern>
        <pattern id="hatch-unhealthy" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
          <rect width="7" height="7" className="hatch-bad" />
          <rect width="1.8" height="7" className="hatch-gap" />
        </pattern>
        <pattern id="hatch-maintenance" width="7" height="7" patternUnits="userSpaceOnUse">
          <rect width="7" height="7" className="hatch-care" />
          <rect width="7" height="1.8" className="hatch-gap" />
        </pattern>
      </defs>
    </svg>
  );
}

export function Legend({ series }: { series: Series[] }) {
  const { texts } = useWords();
  return (
    <ul className="legend" aria-label={texts.legend}>
      {series.map((each) => (
        <li key={each.key}>
          <svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" rx="2" style={{ fill: each.fill }} /></svg>
          {each.label}
        </li>
      ))}
    </ul>
  );
}

const WIDTH = 960;
const HEIGHT = 280;
const LEFT = 56;
/** Half the longest label of a day stands to the right of the last bar's middle. */
const RIGHT = 24;
const BOTTOM = 26;
const TOP = 10;

export function StackedBars({ label, columns, series }: { label: string; columns: Column[]; series: Series[] }) {
  const { short } = useWords();
  const lines = linesOf(Math.max(0, ...columns.map((column) => column.pieces.reduce((sum, piece) => sum + piece.size, 0))));
  const most = lines.at(-1) ?? 1;
  const step = (WIDTH - LEFT - RIGHT) / Math.max(1, columns.length);
  const scale = (HEIGHT - BOTTOM - TOP) / most;
  const every = Math.ceil(columns.length / 11);
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} className="bars" role="img" aria-label={label}>
      {lines.map((line) => {
        const y = HEIGHT - BOTTOM - line * scale;
        return (
          <g key={line}>
            <line x1={LEFT} x2={WIDTH - RIGHT} y1={y} y2={y} className="scale" />
            <text x={LEFT - 8} y={y + 4} textAnchor="end">{short(line)}</text>
          </g>
        );
      })}
      {columns.map((column, at) => {
        let y = HEIGHT - BOTTOM;
        const x = LEFT + at * step + step * 0.12;
        return (
          <g key={column.key}>
            {series.map(({ key, fill }) =>
              column.pieces
                .filter((piece) => piece.series === key && piece.size > 0)
                .map((piece) => {
                  const height = piece.size * scale;
                  y -= height;
                  return (
                    <rect key={piece.title} x={x} y={y} width={step * 0.76} height={height} style={{ fill }}>
                      <title>{piece.title}</title>
                    </rect>
                  );
                }),
            )}
            {at % every === 0 && (
              <text x={x + step * 0.38} y={HEIGHT - 8} textAnchor="middle">{column.label}</text>
            )}
          </g>
        );
      })}
    </svg>
  );
}
