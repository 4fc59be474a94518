/** What both views of the fleet are made of: a GPU's bar with its pieces to scale, their colours, words and table. */
import type { Layout, Piece } from "../api/client";
import { ofNames, ofState, STATES } from "../colours";
import type { Series } from "../chart";
import { useWords, type Words } from "../text";
import { drawn, fraction, holderOf, useOf } from "./layout";

export type Paint = "tenant" | "use";
export type Colour = (piece: Piece) => string;

const USES = 5;
const useStep = (use: number) => Math.min(USES - 1, Math.floor(use * USES));

/** Who is said to pay: the platform pays for what no rule maps, and that is nobody's. */
const payer = ({ tenant }: Piece) => (tenant === null || tenant === "platform" ? null : tenant);

const NOBODY = "var(--c-other)";

export function colourBy(paint: Paint, tenants: string[]): Colour {
  const ofTenant = ofNames(tenants);
  return (piece) => {
    if (piece.state !== "used") return ofState(piece.state);
    if (paint === "use") {
      const use = useOf(piece);
      return use === null ? NOBODY : `var(--u${useStep(use)})`;
    }
    const tenant = payer(piece);
    return tenant === null ? NOBODY : ofTenant(tenant);
  };
}

/** Of what is on the page and of nothing else. */
export function legend(paint: Paint, pieces: Piece[], colour: Colour, { texts, percent, word }: Words): Series[] {
  const found = new Set(pieces.map((piece) => piece.state));
  const states: Series[] = STATES.filter((state) => state !== "used" && found.has(state as Piece["state"])).map((state) => ({
    key: state, label: word("states", state), fill: ofState(state),
  }));
  const used = pieces.filter((piece) => piece.state === "used");
  if (paint === "use") {
    const steps = Array.from({ length: USES }, (_, step) => ({
      key: `use ${step}`,
      label: `${percent(step / USES)}–${percent((step + 1) / USES)}`,
      fill: `var(--u${step})`,
    }));
    const isMissing = used.some((piece) => piece.utilization === null);
    return [...steps, ...(isMissing ? [{ key: "none", label: texts.notMeasured, fill: NOBODY }] : []), ...states];
  }
  const payers = new Map<string, Piece>();
  for (const piece of used) payers.set(payer(piece) ?? "", piece);
  const named = [...payers].sort(([a], [b]) => Number(a === "") - Number(b === "") || a.localeCompare(b));
  return [...named.map(([tenant, piece]) => ({ key: `t ${tenant}`, label: tenant || texts.unmapped, fill: colour(piece) })), ...states];
}

const sliceOf = ({ mode, slice }: Piece, words: Words) =>
  [mode && words.word("modes", mode), slice && slice !== "device" && words.slice(slice)].filter(Boolean).join(" ");

/** What a piece is, in words. */
export function say(piece: Piece, words: Words): string {
  const { texts, word, percent, fill } = words;
  const use = useOf(piece);
  const holder = holderOf(piece);
  return [
    word("states", piece.state),
    holder ? `${holder} (${payer(piece) ?? texts.unmapped})` : payer(piece),
    sliceOf(piece, words),
    fill(texts.ofGpu, { share: `${percent(fraction(piece.share))} (${piece.share})` }),
    use !== null && `${texts.use.toLowerCase()} ${percent(use)}`,
    piece.estimated && texts.estimated,
  ].filter(Boolean).join(", ");
}

/** Who has it, or else what it is: its colour or pattern tells the state as well. */
const calledBy = (piece: Piece, { texts, word }: Words) =>
  payer(piece) ?? (piece.state === "used" ? texts.unmapped : holderOf(piece) || word("states", piece.state));

/** To scale; each piece says what it is, as far as that fits. The table beside it says it to those who do not see it. */
export function Bar({ layout, colour, isTall }: { layout: Layout; colour: Colour; isTall?: boolean }) {
  const words = useWords();
  const pieces = drawn(layout);
  const percent = (part: number) => `${(part * 100).toFixed(4)}%`;
  return (
    <span className={isTall ? "strip tall" : "strip"} aria-hidden="true">
      <svg>
        {pieces.map(({ piece, start, share }, at) => (
          <rect key={at} x={percent(start)} y="0" width={percent(share)} height="100%" className="piece" style={{ fill: colour(piece) }} />
        ))}
      </svg>
      {pieces.map(({ piece, start, share }, at) => (
        <span key={at} className="tag" style={{ left: percent(start), width: percent(share) }} title={say(piece, words)}>
          <span className={payer(piece) !== null ? undefined : piece.slice === null ? "nobody bare" : "nobody"}>
            <b>{calledBy(piece, words)}</b>
            {piece.slice !== null && piece.slice !== "device" && <i>{words.slice(piece.slice)}</i>}
          </span>
        </span>
      ))}
    </span>
  );
}

export interface Row {
  key: string;
  /** Of which GPU, or since when. */
  name: string;
  /** Until when, where a table tells of more than one time. */
  to?: string;
  piece: Piece;
}

export function PieceTable({ rows, first }: { rows: Row[]; first: string }) {
  const words = useWords();
  const { texts, percent, word, slice } = words;
  const hasEnds = rows.some((row) => row.to);
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">{first}</th>
          {hasEnds && <th scope="col">{texts.to}</th>}
          <th scope="col">{texts.slice}</th>
          <th scope="col">{texts.mode}</th>
          <th scope="col">{texts.state}</th>
          <th scope="col">{texts.tenant}</th>
          <th scope="col">{texts.project}</th>
          <th scope="col">{texts.holder}</th>
          <th scope="col" className="number">{texts.share}</th>
          <th scope="col" className="number">{texts.use}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(({ key, name, to, piece }) => {
          const use = useOf(piece);
          return (
            <tr key={key}>
              <th scope="row" className="whole">{name}</th>
              {hasEnds && <td className="whole">{to}</td>}
              <td>{piece.slice ? slice(piece.slice) : "–"}</td>
              <td>{piece.mode ? word("modes", piece.mode) : "–"}</td>
              <td>{word("states", piece.state)}{piece.estimated && `, ${texts.estimated}`}</td>
              <td>{payer(piece) ?? (holderOf(piece) ? texts.unmapped : "–")}</td>
              <td>{piece.project ?? "–"}</td>
              <td>{holderOf(piece) || "–"}</td>
              <td className="number">{percent(fraction(piece.share))} <small className="quiet">{piece.share}</small></td>
              <td className="number">{use === null ? "–" : percent(use)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
