/** A GPU over time, to scale both ways: its shares one on the other, each slice a lane as high as its share. */
import { useMemo } from "react";
import type { Layout } from "../api/client";
import { Twin } from "../parts";
import { useWords } from "../text";
import { PieceTable, say, type Colour } from "./bar";
import { runsOf } from "./layout";

const WIDTH = 960;
const LEFT = 48;
const RIGHT = 20;
const TOP = 8;
const HIGH = 240;
const BOTTOM = 26;
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
/** A table of more is no help to anybody; the picture has them all. */
const ROWS_MAX = 500;

interface Props {
  layouts: Layout[];
  from: number;
  to: number;
  /** The instant that was asked for. */
  at: number | null;
  colour: Colour;
  byUse: boolean;
  title: string;
}

export function Timeline({ layouts, from, to, at, colour, byUse, title }: Props) {
  const words = useWords();
  const { texts, fill, count, time, clock, date, percent } = words;
  const runs = useMemo(() => runsOf(layouts, byUse), [layouts, byUse]);
  const x = (instant: number) => LEFT + ((Math.min(Math.max(instant, from), to) - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const y = (share: number) => TOP + share * HIGH;
  const every = to - from <= DAY ? 4 * HOUR : to - from <= 3 * DAY ? 12 * HOUR : DAY;
  const marks = Array.from({ length: Math.floor((to - from) / every) + 1 }, (_, mark) => from + mark * every);
  const isMidnight = (mark: number) => mark % DAY === 0;
  return (
    <>
      <p className="quiet">{fill(texts.fromTo, { from: time(from), to: time(to) })} {texts.blankIsUncounted}</p>
      <div className="picture" role="group" aria-label={title} tabIndex={0}>
        <svg viewBox={`0 0 ${WIDTH} ${TOP + HIGH + BOTTOM}`} className="bars timeline" role="img" aria-label={title}>
          {[0, 0.25, 0.5, 0.75, 1].map((share) => (
            <g key={share}>
              <line x1={LEFT} x2={WIDTH - RIGHT} y1={y(share)} y2={y(share)} className="scale" />
              <text x={LEFT - 8} y={y(share) + 4} textAnchor="end">{percent(share)}</text>
            </g>
          ))}
          {runs.map(({ piece, start, share, from: since, to: until }, index) => (
            <rect
              key={index} x={x(since)} width={Math.max(0.5, x(until) - x(since))}
              // A pixel of ground between lanes tells neighbours of one tenant apart.
              y={y(start) + 0.5} height={Math.max(0.5, share * HIGH - 1)} className="piece" style={{ fill: colour(piece) }}
            >
              <title>{`${say(piece, words)}, ${time(since)} – ${time(until)}`}</title>
            </rect>
          ))}
          {marks.map((mark, index) => (
            <g key={mark}>
              <line x1={x(mark)} x2={x(mark)} y1={TOP} y2={TOP + HIGH + 4} className="scale" />
              <text x={x(mark)} y={TOP + HIGH + 18} textAnchor={index === marks.length - 1 ? "end" : "middle"}>
                {isMidnight(mark) ? date(new Date(mark).toISOString().slice(0, 10)) : clock(mark)}
              </text>
            </g>
          ))}
          {at !== null && <line x1={x(at)} x2={x(at)} y1="0" y2={TOP + HIGH + 4} className="now"><title>{time(at)}</title></line>}
        </svg>
      </div>
      <Twin label={title}>
        {runs.length > ROWS_MAX && <p className="quiet">{count(texts.firstRows, ROWS_MAX)}</p>}
        <PieceTable
          first={texts.from}
          rows={runs.slice(0, ROWS_MAX).map(({ piece, from: since, to: until }, index) => ({ key: String(index), name: time(since), to: time(until), piece }))}
        />
      </Twin>
    </>
  );
}
