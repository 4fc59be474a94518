/**
 * The fleet: nodes and their GPUs with slices to scale, who held them at an instant, and a GPU's timeline.
 */
import { api, body, useLoaded, type Device, type Window_ } from "../api/client";
import { Hatches, Legend, type Series } from "../chart";
import { ofNames } from "../colours";
import { Choice, Here, Twin } from "../parts";
import { useWords, type Words } from "../text";
import { address, go, Link, usePlace } from "../url";
import { piecesOf, serviceAt, type Piece } from "./layout";
import { Timeline } from "./timeline";

/** Nodes of one view: each is asked for by itself. */
const NODES = 12;
const PAGES_MAX = 5;
const SECOND = 1_000;

export type Paint = "tenant" | "use";
export type Colour = (piece: Pick<Piece, "kind" | "tenant" | "use">) => string;

/** All windows of a node that meet a span, as far as some pages go; and until when, where there are more. */
export async function windows(query: {
  node: string; from: number; to: number; device?: string; kind?: "held";
}): Promise<{ windows: Window_[]; cutAt: number | null }> {
  const found: Window_[] = [];
  let after: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const { items, next } = await body(
      api.GET("/api/v1/usage/windows", {
        params: {
          query: {
            node: query.node, from: new Date(query.from).toISOString(), to: new Date(query.to).toISOString(), limit: 1000,
            ...(query.device && { device: query.device }), ...(query.kind && { kind: query.kind }), ...(after && { after }),
          },
        },
      }),
    );
    found.push(...items);
    if (!next) return { windows: found, cutAt: null };
    after = next;
  }
  const last = found.at(-1);
  return { windows: found, cutAt: last ? Date.parse(last.from) : query.from };
}

/** The last instant of which something of a node is known. */
function lastOf(devices: Device[]): number | null {
  const edges = devices.flatMap((device) => device.in_service.map((each) => Math.max(Date.parse(each.covered_to) - SECOND, Date.parse(each.from))));
  return edges.length ? Math.max(...edges) : null;
}

interface NodeNow {
  devices: Device[];
  windows: Window_[];
  at: number | null;
}

async function nodeAt(node: string, asked: number | null): Promise<NodeNow> {
  const { items } = await body(api.GET("/api/v1/devices", { params: { query: { node, limit: 1000 } } }));
  // A device that is at home elsewhere now is drawn there.
  const devices = items
    .map((device) => ({ ...device, in_service: device.in_service.filter((each) => each.node === node) }))
    .sort((a, b) => (a.in_service.at(-1)?.gpu_index ?? 0) - (b.in_service.at(-1)?.gpu_index ?? 0));
  const at = asked ?? lastOf(devices);
  if (at === null) return { devices, windows: [], at };
  const seen = await windows({ node, from: at, to: at + SECOND });
  return { devices, windows: seen.windows, at };
}

/** An instant of the address. */
function instant(text: string | null): number | null {
  const at = text === null ? Number.NaN : Date.parse(text);
  return Number.isFinite(at) ? at : null;
}

const USES = 5;
const useStep = (use: number) => Math.min(USES - 1, Math.floor(use * USES));

function colourBy(paint: Paint, tenants: string[]): Colour {
  const ofTenant = ofNames(tenants);
  return ({ kind, tenant, use }) => {
    if (kind === "idle" || kind === "unsliced") return "url(#hatch-idle)";
    if (kind === "stranded") return "url(#hatch-stranded)";
    if (kind === "unknown") return "url(#hatch-unknown)";
    if (kind === "out") return "var(--ground)";
    if (paint === "use") return use === null ? "var(--c-other)" : `var(--u${useStep(use)})`;
    return tenant === null ? "var(--c-other)" : ofTenant(tenant);
  };
}

function legend(paint: Paint, tenants: string[], colour: Colour, { texts, percent }: Words): Series[] {
  const held = { kind: "held" as const };
  const states: Series[] = [
    { key: "idle", label: texts.idle, fill: "url(#hatch-idle)" },
    { key: "stranded", label: texts.stranded, fill: "url(#hatch-stranded)" },
    { key: "unknown", label: texts.states.unknown.toLowerCase(), fill: "url(#hatch-unknown)" },
  ];
  if (paint === "use") {
    const steps = Array.from({ length: USES }, (_, step) => ({
      key: `use ${step}`,
      label: `${percent(step / USES)}–${percent((step + 1) / USES)}`,
      fill: `var(--u${step})`,
    }));
    return [...steps, { key: "none", label: texts.notMeasured, fill: "var(--c-other)" }, ...states];
  }
  const named = tenants.map((tenant) => ({ key: `t ${tenant}`, label: tenant, fill: colour({ ...held, tenant, use: null }) }));
  return [...named, { key: "unmapped", label: texts.unmapped, fill: "var(--c-other)" }, ...states];
}

export function Fleet() {
  const words = useWords();
  const { texts } = words;
  const place = usePlace();
  const { query } = place;
  const after = query.get("after");
  const at = instant(query.get("at"));
  const paint: Paint = query.get("by") === "use" ? "use" : "tenant";
  const loaded = useLoaded(`nodes ${after ?? ""}`, async () => {
    const [nodes, tenants] = await Promise.all([
      body(api.GET("/api/v1/nodes", { params: { query: { limit: NODES, ...(after && { after }) } } })),
      body(api.GET("/api/v1/tenants", { params: { query: { limit: 1000 } } })),
    ]);
    return { nodes: nodes.items, next: nodes.next, tenants: tenants.items.map((tenant) => tenant.name).filter((name) => name !== "platform") };
  });
  const [node, device] = [query.get("node"), query.get("device")];
  return (
    <>
      <Hatches />
      <Here loaded={loaded}>
        {({ nodes, next, tenants }) => {
          const colour = colourBy(paint, tenants);
          if (node !== null && device !== null) return <OneDevice node={node} device={device} at={at} colour={colour} tenants={tenants} />;
          return (
            <>
              <div className="head">
                <h1>{texts.fleet}</h1>
                <div className="tools">
                  <AtField at={at} />
                  <Choice<Paint>
                    label={texts.colourBy}
                    value={paint}
                    options={[{ value: "tenant", text: texts.byPayer }, { value: "use", text: texts.byUse }]}
                    choose={(value) => go(address(place, { by: value === "use" ? "use" : null }))}
                  />
                </div>
              </div>
              <Legend series={legend(paint, tenants, colour, words)} />
              <p className="quiet">{texts.toScale}</p>
              {nodes.length === 0 && <p className="note">{texts.noNodes}</p>}
              <div className="nodes">
                {nodes.map(({ name }) => <NodeCard key={name} node={name} at={at} colour={colour} />)}
              </div>
              {(after || next) && (
                <p className="tools">
                  {after && <Link className="button" to={address(place, { after: null })}>{texts.firstNodes}</Link>}
                  {next && <Link className="button" to={address(place, { after: next })}>{texts.moreNodes}</Link>}
                </p>
              )}
            </>
          );
        }}
      </Here>
    </>
  );
}

/** An instant in UTC, as text: native fields speak the browser's language and hide the zone. */
function AtField({ at }: { at: number | null }) {
  const { texts } = useWords();
  const place = usePlace();
  const shown = at === null ? "" : new Date(at).toISOString().slice(0, 16).replace("T", " ");
  return (
    <form
      className="choice"
      onSubmit={(event) => {
        event.preventDefault();
        const text = String(new FormData(event.currentTarget).get("at") ?? "").trim().replace(" ", "T");
        const chosen = text ? Date.parse(/Z$/.test(text) ? text : `${text}Z`) : Number.NaN;
        go(address(place, { at: Number.isFinite(chosen) ? new Date(chosen).toISOString() : null }));
      }}
    >
      <label htmlFor="at">{texts.at} ({texts.utc})</label>
      <input
        id="at" name="at" key={shown} defaultValue={shown} placeholder="2026-09-10 12:00" size={16}
        pattern="\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?Z?)?"
      />
      <button type="submit">{texts.show}</button>
      {at !== null && <Link className="button" to={address(place, { at: null })}>{texts.latest}</Link>}
    </form>
  );
}

/** What a piece is, in words. */
export function say(piece: Piece, { texts, word, percent, slice: sizeOf }: Words): string {
  const share = percent(piece.share);
  const slice = [piece.mode && word("modes", piece.mode), piece.slice && piece.slice !== "device" && sizeOf(piece.slice)].filter(Boolean).join(" ");
  const named = (text: string) => [slice, text, share].filter(Boolean).join(", ");
  switch (piece.kind) {
    case "held": {
      const use = piece.use === null ? "" : `, ${texts.use.toLowerCase()} ${percent(piece.use)}`;
      return named(`${piece.holder} (${piece.tenant ?? texts.unmapped})`) + use;
    }
    case "idle": return named(texts.idle);
    case "stranded": return named(texts.stranded);
    case "unsliced": return named(texts.unsliced);
    case "unknown": return texts.nothingReported;
    case "out": return texts.notInService;
  }
}

export function Strip({ pieces, colour, height = 26 }: { pieces: Piece[]; colour: Colour; height?: number }) {
  const words = useWords();
  let x = 0;
  return (
    <svg className="strip" style={{ height }} aria-hidden="true">
      {pieces.map((piece) => {
        const at = x;
        x += piece.share * 100;
        return (
          <rect key={piece.key} x={`${at}%`} y="0" width={`${piece.share * 100}%`} height="100%" className={`piece ${piece.kind}`} style={{ fill: colour(piece) }}>
            <title>{say(piece, words)}</title>
          </rect>
        );
      })}
    </svg>
  );
}

const shortId = (uuid: string) => (uuid.length > 14 ? `${uuid.slice(0, 12)}…` : uuid);
const indexOf = (device: Device) => device.in_service.at(-1)?.gpu_index ?? null;

function NodeCard({ node, at, colour }: { node: string; at: number | null; colour: Colour }) {
  const words = useWords();
  const { texts, count, fill, time } = words;
  const place = usePlace();
  const loaded = useLoaded(`node ${node} ${at ?? ""}`, () => nodeAt(node, at));
  return (
    <section className="node" aria-label={node}>
      <h2>{node}</h2>
      <Here loaded={loaded}>
        {(now) => {
          const drawn = now.devices.map((device) => ({ device, pieces: now.at === null ? [] : piecesOf(device, now.windows, now.at) }));
          return (
            <>
              <p className="quiet">
                {count(texts.gpus, now.devices.length)}, {now.at === null ? texts.neverReported : fill(texts.nodeAt, { at: time(now.at) })}
              </p>
              <ul className="gpus">
                {drawn.map(({ device, pieces }) => (
                  <li key={device.gpu_uuid}>
                    <Link to={address(place, { node, device: device.gpu_uuid })}>
                      <span className="gpu-name"><b>{indexOf(device) ?? "–"}</b> {device.gpu_model}{pieces[0]?.kind === "out" && `, ${texts.notInService}`}{pieces[0]?.kind === "unknown" && `, ${texts.nothingReported}`}</span>
                      <Strip pieces={pieces} colour={colour} />
                    </Link>
                  </li>
                ))}
              </ul>
              <Twin label={`${node}: ${texts.asTable}`}>
                <PieceTable rows={drawn} />
              </Twin>
            </>
          );
        }}
      </Here>
    </section>
  );
}

function PieceTable({ rows }: { rows: { device: Device; pieces: Piece[] }[] }) {
  const { texts, percent, word, slice } = useWords();
  const state = (piece: Piece) =>
    ({ held: texts.held.toLowerCase(), idle: texts.idle, stranded: texts.stranded, unsliced: texts.unsliced, unknown: texts.nothingReported, out: texts.notInService })[piece.kind];
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">{texts.gpu}</th>
          <th scope="col">{texts.slice}</th>
          <th scope="col">{texts.mode}</th>
          <th scope="col">{texts.state}</th>
          <th scope="col">{texts.tenant}</th>
          <th scope="col">{texts.holder}</th>
          <th scope="col" className="number">{texts.share}</th>
          <th scope="col" className="number">{texts.use}</th>
        </tr>
      </thead>
      <tbody>
        {rows.flatMap(({ device, pieces }) =>
          pieces.map((piece) => (
            <tr key={`${device.gpu_uuid} ${piece.key}`}>
              <th scope="row">{indexOf(device) ?? shortId(device.gpu_uuid)}</th>
              <td>{piece.slice ? slice(piece.slice) : "–"}</td>
              <td>{piece.mode ? word("modes", piece.mode) : "–"}</td>
              <td>{state(piece)}</td>
              <td>{piece.kind === "held" ? (piece.tenant ?? texts.unmapped) : "–"}</td>
              <td>{piece.holder || "–"}</td>
              <td className="number">{percent(piece.share)}</td>
              <td className="number">{piece.use === null ? "–" : percent(piece.use)}</td>
            </tr>
          )),
        )}
      </tbody>
    </table>
  );
}

const SPANS = [6, 24, 168] as const;

function OneDevice(props: { node: string; device: string; at: number | null; colour: Colour; tenants: string[] }) {
  const { node, at, colour } = props;
  const words = useWords();
  const { texts, count, fill, time } = words;
  const place = usePlace();
  const hours = SPANS.find((span) => String(span) === place.query.get("hours")) ?? 24;
  const back = <p><Link to={address(place, { node: null, device: null, hours: null })}>{texts.close}</Link></p>;
  const loaded = useLoaded(`node ${node} ${at ?? ""}`, () => nodeAt(node, at));
  return (
    <Here loaded={loaded}>
      {(now) => {
        const device = now.devices.find((each) => each.gpu_uuid === props.device);
        if (!device) return <><h1>{texts.notFound}</h1>{back}</>;
        const until = at ?? lastOf([device]) ?? 0;
        const pieces = piecesOf(device, now.windows, now.at ?? until);
        const service = serviceAt(device, until) ?? device.in_service.at(-1);
        const name = `${node} ${texts.gpu} ${indexOf(device) ?? ""}`;
        const present = colourBy("tenant", props.tenants);
        return (
          <>
            {back}
            <div className="head">
              <h1>{name}</h1>
              <div className="tools">
                <AtField at={at} />
                <Choice
                  label={texts.span}
                  value={String(hours)}
                  options={SPANS.map((span) => ({ value: String(span), text: count(texts.hours, span) }))}
                  choose={(value) => go(address(place, { hours: value === "24" ? null : value }))}
                />
              </div>
            </div>
            <p className="quiet">
              {device.gpu_model}, <code>{device.gpu_uuid}</code>{service && `, ${fill(texts.inServiceSince, { at: time(service.from) })}`}
            </p>
            <section aria-labelledby="slices">
              <h2 id="slices">{fill(texts.slicesOf, { gpu: name })}</h2>
              <p className="quiet">{fill(texts.nodeAt, { at: time(now.at ?? until) })}</p>
              <Legend series={legend("tenant", props.tenants, present, words)} />
              <Strip pieces={pieces} colour={colour} height={48} />
              <Twin label={fill(texts.slicesOf, { gpu: name })}><PieceTable rows={[{ device, pieces }]} /></Twin>
            </section>
            <Timeline node={node} device={device} until={until} hours={hours} colour={present} name={name} />
          </>
        );
      }}
    </Here>
  );
}

