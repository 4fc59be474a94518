/**
 * The fleet: nodes and pools with their GPUs, each with what it is divided into at an instant, as that is billed.
 */
import { api, body, useLoaded, type Divided, type Piece, type Schemas } from "../api/client";
import { Hatches, Legend } from "../chart";
import { Choice, Here, Twin } from "../parts";
import { useWords } from "../text";
import { address, go, Link, usePlace } from "../url";
import { Bar, colourBy, legend, PieceTable, type Colour, type Paint } from "./bar";
import { OneDevice } from "./device";

type Division = Schemas["ScopeLayout"];

/** Nodes and pools of one view: each is asked for by itself. */
const SCOPES = 12;

interface Asked {
  kind: "node" | "pool";
  name: string;
}
interface Card extends Asked {
  /** One that cannot be shown does not hide the others. */
  division: PromiseSettledResult<Division>;
}
interface Shown {
  cards: Card[];
  tenants: string[];
  nextNodes: string | null;
  nextPools: string | null;
}

async function divisionOf({ kind, name }: Asked, at: string | null): Promise<Division> {
  const query = at === null ? {} : { at };
  return kind === "node"
    ? body(api.GET("/api/v1/nodes/{node}/layout", { params: { path: { node: name }, query } }))
    : body(api.GET("/api/v1/pools/{pool}/layout", { params: { path: { pool: name }, query } }));
}

/** One node or pool, if the address names one; else a page of nodes and, when all were shown, of pools. */
async function shown(query: URLSearchParams, at: string | null): Promise<Shown> {
  const tenants = body(api.GET("/api/v1/tenants", { params: { query: { limit: 1000 } } }));
  const page = (after: string | null) => ({ params: { query: { limit: SCOPES, ...(after && { after }) } } });
  const asked: Asked[] = [];
  let nextNodes: string | null = null;
  let nextPools: string | null = null;
  const [node, pool, poolsAfter] = [query.get("node"), query.get("pool"), query.get("pools")];
  if (node) asked.push({ kind: "node", name: node });
  else if (pool) asked.push({ kind: "pool", name: pool });
  else {
    if (!poolsAfter) {
      const nodes = await body(api.GET("/api/v1/nodes", page(query.get("after"))));
      asked.push(...nodes.items.map(({ name }): Asked => ({ kind: "node", name })));
      nextNodes = nodes.next;
    }
    if (!nextNodes) {
      const pools = await body(api.GET("/api/v1/pools", page(poolsAfter)));
      asked.push(...pools.items.map(({ name }): Asked => ({ kind: "pool", name })));
      nextPools = pools.next;
    }
  }
  const divisions = await Promise.allSettled(asked.map((each) => divisionOf(each, at)));
  const cards = divisions.flatMap((division, index): Card[] => (asked[index] ? [{ ...asked[index], division }] : []));
  return { cards, tenants: (await tenants).items.map((tenant) => tenant.name).filter((name) => name !== "platform"), nextNodes, nextPools };
}

/** An instant of the address. */
export function instant(text: string | null): number | null {
  const at = text === null ? Number.NaN : Date.parse(text);
  return Number.isFinite(at) ? at : null;
}

const piecesOf = ({ cards }: Shown): Piece[] =>
  cards.flatMap(({ division }) =>
    division.status === "fulfilled" ? division.value.devices.flatMap((device) => device.layouts.flatMap((layout) => layout.pieces)) : [],
  );

export function Fleet() {
  const { query } = usePlace();
  const device = query.get("device");
  return (
    <>
      <Hatches />
      {device === null ? <Cards /> : <OneDevice uuid={device} />}
    </>
  );
}

function Cards() {
  const words = useWords();
  const { texts } = words;
  const place = usePlace();
  const { query } = place;
  const at = instant(query.get("at"));
  const asked = at === null ? null : new Date(at).toISOString();
  const paint: Paint = query.get("by") === "use" ? "use" : "tenant";
  const [one, isLater] = [query.get("node") ?? query.get("pool"), query.has("after") || query.has("pools")];
  const key = ["node", "pool", "after", "pools"].map((name) => query.get(name) ?? "").join(" ");
  const loaded = useLoaded(`fleet ${key} ${asked ?? ""}`, () => shown(query, asked));
  return (
    <>
      <div className="head">
        <h1>{texts.fleet}</h1>
        <div className="tools">
          <AtField at={at} />
          <PaintChoice paint={paint} />
        </div>
      </div>
      <Here loaded={loaded}>
        {(all) => {
          const colour = colourBy(paint, all.tenants);
          return (
            <>
              <Legend series={legend(paint, piecesOf(all), colour, words)} />
              <p className="quiet">{texts.toScale}</p>
              {all.cards.length === 0 && <p className="note">{texts.noNodes}</p>}
              <div className={one ? "nodes one" : "nodes"}>
                {all.cards.map((card) => <ScopeCard key={`${card.kind} ${card.name}`} card={card} colour={colour} />)}
              </div>
              <p className="tools">
                {one && <Link className="button" to={address(place, { node: null, pool: null })}>{texts.allNodes}</Link>}
                {isLater && <Link className="button" to={address(place, { after: null, pools: null })}>{texts.firstNodes}</Link>}
                {all.nextNodes && <Link className="button" to={address(place, { after: all.nextNodes })}>{texts.moreNodes}</Link>}
                {all.nextPools && <Link className="button" to={address(place, { after: null, pools: all.nextPools })}>{texts.morePools}</Link>}
              </p>
            </>
          );
        }}
      </Here>
    </>
  );
}

export function PaintChoice({ paint }: { paint: Paint }) {
  const { texts } = useWords();
  const place = usePlace();
  return (
    <Choice<Paint>
      label={texts.colourBy}
      value={paint}
      options={[{ value: "tenant", text: texts.byPayer }, { value: "use", text: texts.byUse }]}
      choose={(value) => go(address(place, { by: value === "use" ? "use" : null }))}
    />
  );
}

/** An instant in UTC, as text: native fields speak the browser's language and hide the zone. */
export function AtField({ at }: { at: number | null }) {
  const { texts } = useWords();
  const place = usePlace();
  const text = at === null ? "" : new Date(at).toISOString().slice(0, 16).replace("T", " ");
  return (
    <form
      className="choice"
      onSubmit={(event) => {
        event.preventDefault();
        const typed = String(new FormData(event.currentTarget).get("at") ?? "").trim().replace(" ", "T");
        const chosen = typed ? instant(/Z$/.test(typed) || !typed.includes("T") ? typed : `${typed}Z`) : null;
        go(address(place, { at: chosen === null ? null : new Date(chosen).toISOString() }));
      }}
    >
      <label htmlFor="at">{texts.at} ({texts.utc})</label>
      <input
        id="at" name="at" key={text} defaultValue={text} placeholder="2026-09-10 12:00" size={16}
        pattern="\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?Z?)?"
      />
      <button type="submit">{texts.show}</button>
      {at !== null && <Link className="button" to={address(place, { at: null })}>{texts.latest}</Link>}
    </form>
  );
}

function ScopeCard({ card, colour }: { card: Card; colour: Colour }) {
  const { texts, count, fill, time } = useWords();
  const { kind, name, division } = card;
  const title = kind === "pool" ? fill(texts.poolNamed, { name }) : name;
  return (
    <section className="node" aria-label={title}>
      <h2>{title}</h2>
      <Here loaded={division.status === "fulfilled" ? { state: "here", value: division.value } : { state: "failed", error: division.reason }}>
        {({ at, devices }) => {
          const isEmpty = devices.every((device) => device.layouts.length === 0);
          const ordered = [...devices].sort((a, b) => (kind === "pool" ? a.node.localeCompare(b.node) : 0) || (a.gpu_index ?? 0) - (b.gpu_index ?? 0));
          return (
            <>
              <p className="quiet">
                {count(texts.gpus, devices.length)}, {at === null ? texts.neverCounted : fill(texts.countedAt, { at: time(at) })}
              </p>
              <ul className="gpus">
                {ordered.map((device) => <Gpu key={device.gpu_uuid} device={device} isOfPool={kind === "pool"} colour={colour} />)}
              </ul>
              {!isEmpty && (
                <Twin label={`${title}: ${texts.asTable}`}>
                  <PieceTable
                    first={texts.gpu}
                    rows={ordered.flatMap((device) =>
                      device.layouts.flatMap((layout) =>
                        layout.pieces.map((piece, index) => ({ key: `${device.gpu_uuid} ${index}`, name: nameOf(device), piece })),
                      ),
                    )}
                  />
                </Twin>
              )}
            </>
          );
        }}
      </Here>
    </section>
  );
}

const nameOf = ({ gpu_index, gpu_uuid }: Divided) => (gpu_index === null ? `${gpu_uuid.slice(0, 12)}…` : String(gpu_index));

function Gpu({ device, isOfPool, colour }: { device: Divided; isOfPool: boolean; colour: Colour }) {
  const words = useWords();
  const { texts, fill, word } = words;
  const place = usePlace();
  const [layout] = device.layouts;
  const isElsewhere = !isOfPool && device.pool !== null;
  return (
    <li className={isElsewhere ? "elsewhere" : undefined}>
      <Link to={address(place, { node: null, pool: null, device: device.gpu_uuid })}>
        <span className="gpu-name"><b>{nameOf(device)}</b> {device.gpu_model}{isOfPool && `, ${device.node}`}</span>
        {layout && <Bar layout={layout} colour={colour} />}
      </Link>
      {isElsewhere ? (
        <Link to={address(place, { node: null, pool: device.pool })} label={`${nameOf(device)}: ${fill(texts.inPool, { name: device.pool ?? "" })}`}>
          {fill(texts.inPool, { name: device.pool ?? "" })}
        </Link>
      ) : (
        !layout && <p className="quiet">{texts.nothingCounted}</p>
      )}
      {layout?.doubts.map((doubt) => (
        <p key={`${doubt.kind} ${doubt.about}`} className="quiet">{word("findingKinds", doubt.kind)}: {doubt.about}</p>
      ))}
    </li>
  );
}
