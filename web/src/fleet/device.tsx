/** One GPU: what it is divided into at an instant, and over the days around it. */
import { api, body, Refusal, useLoaded, type Device } from "../api/client";
import { Legend } from "../chart";
import { Choice, Here, Twin } from "../parts";
import { useWords } from "../text";
import { address, go, Link, usePlace } from "../url";
import { Bar, colourBy, legend, PieceTable, type Paint } from "./bar";
import { layoutAt } from "./layout";
import { AtField, instant, PaintChoice } from "./page";
import { Timeline } from "./timeline";

/** The service answers for a week at most. */
const SPANS = [24, 72, 168] as const;
const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** The last instant that was counted; null if none was. */
function lastOf(device: Device): number | null {
  const edges = device.in_service.filter((each) => each.counted_to > each.from).map((each) => Date.parse(each.counted_to) - 1);
  return edges.length ? Math.max(...edges) : null;
}

/** Whole days with the instant in their middle, as far as something was counted. */
function daysAround(at: number, last: number, hours: number): { from: number; to: number } {
  const days = hours / 24;
  const dayOf = (instant: number) => Math.floor(instant / DAY);
  const lastDay = Math.max(dayOf(at), Math.min(dayOf(at) + (days - 1) / 2, dayOf(last)));
  return { from: (lastDay + 1 - days) * DAY, to: (lastDay + 1) * DAY };
}

async function load(uuid: string, asked: number | null, hours: number) {
  const device = await body(api.GET("/api/v1/devices/{device}", { params: { path: { device: uuid } } }));
  const tenants = await body(api.GET("/api/v1/tenants", { params: { query: { limit: 1000 } } }));
  const last = lastOf(device);
  const at = asked ?? last;
  if (at === null) return { device, at, last: at, from: 0, to: 0, layouts: [], homes: [], tenants: [] };
  const { from, to } = daysAround(at, last ?? at, hours);
  const query = { from: new Date(from).toISOString(), to: new Date(to).toISOString() };
  const answer = await body(api.GET("/api/v1/devices/{device}/layout", { params: { path: { device: uuid }, query } }));
  // A GPU is divided by one node or pool at a time: what all of them say follows each other.
  const layouts = answer.devices.flatMap((each) => each.layouts).sort((a, b) => Date.parse(a.from) - Date.parse(b.from));
  return { device, at, last, from, to, layouts, homes: answer.devices, tenants: tenants.items.map((each) => each.name).filter((name) => name !== "platform") };
}

export function OneDevice({ uuid }: { uuid: string }) {
  const words = useWords();
  const { texts, count, fill, time, word } = words;
  const place = usePlace();
  const { query } = place;
  const asked = instant(query.get("at"));
  const hours = SPANS.find((span) => String(span) === query.get("hours")) ?? 24;
  const paint: Paint = query.get("by") === "use" ? "use" : "tenant";
  const loaded = useLoaded(`device ${uuid} ${asked ?? ""} ${hours}`, () => load(uuid, asked, hours));
  const back = <p className="tools"><Link to={address(place, { device: null, hours: null })}>{texts.close}</Link></p>;
  if (loaded.state === "failed" && loaded.error instanceof Refusal && loaded.error.status === 404) {
    return <>{back}<h1>{texts.noDevice}</h1></>;
  }
  return (
    <>
      {back}
      <Here loaded={loaded}>
        {({ device, at, last, from, to, layouts, homes, tenants }) => {
          const service = device.in_service.find((each) => at !== null && Date.parse(each.from) <= at && (each.to === null || at < Date.parse(each.to))) ?? device.in_service.at(-1);
          const name = `${service?.node ?? ""} ${texts.gpu} ${service?.gpu_index ?? ""}`.trim();
          const pools = [...new Set(homes.map((each) => each.pool).filter((pool) => pool !== null))];
          const colour = colourBy(paint, tenants);
          const now = at === null ? undefined : layoutAt(layouts, at);
          const day = (by: number) => address(place, { at: at === null ? null : new Date(at + by * DAY).toISOString() });
          return (
            <>
              <div className="head">
                <h1>{name}</h1>
                <div className="tools">
                  <AtField at={asked} />
                  <PaintChoice paint={paint} />
                  <Choice
                    label={texts.span}
                    value={String(hours)}
                    options={SPANS.map((span) => ({ value: String(span), text: span === 24 ? count(texts.hours, span) : count(texts.days, span / 24) }))}
                    choose={(value) => go(address(place, { hours: value === "24" ? null : value }))}
                  />
                </div>
              </div>
              <p className="quiet">
                {device.gpu_model}, <code>{device.gpu_uuid}</code>
                {service && `, ${fill(texts.inServiceSince, { at: time(service.from) })}`}
                {pools.map((pool) => (
                  <span key={pool}>, <Link to={address(place, { device: null, hours: null, pool })}>{fill(texts.inPool, { name: pool ?? "" })}</Link></span>
                ))}
              </p>
              <Legend series={legend(paint, layouts.flatMap((layout) => layout.pieces), colour, words)} />
              <section aria-labelledby="slices">
                <h2 id="slices">{fill(texts.slicesOf, { gpu: name })}</h2>
                <p className="quiet">{at === null ? texts.neverCounted : fill(texts.countedAt, { at: time(at) })}</p>
                {now ? (
                  <>
                    <Bar layout={now} colour={colour} isTall />
                    {now.doubts.map((doubt) => (
                      <p key={`${doubt.kind} ${doubt.about}`} className="quiet">{word("findingKinds", doubt.kind)}: {doubt.about}</p>
                    ))}
                    <Twin label={fill(texts.slicesOf, { gpu: name })}>
                      <PieceTable first={texts.gpu} rows={now.pieces.map((piece, index) => ({ key: String(index), name, piece }))} />
                    </Twin>
                  </>
                ) : (
                  at !== null && <p className="note">{texts.nothingCounted}</p>
                )}
              </section>
              {at !== null && (
                <section aria-labelledby="timeline">
                  <div className="head">
                    <h2 id="timeline">{fill(texts.timeline, { gpu: name })}</h2>
                    <div className="tools">
                      <Link className="button" to={day(-1)}>{texts.dayBefore}</Link>
                      {last !== null && at + DAY <= last && <Link className="button" to={day(1)}>{texts.dayAfter}</Link>}
                    </div>
                  </div>
                  <Timeline layouts={layouts} from={from} to={to} at={asked} colour={colour} byUse={paint === "use"} title={fill(texts.timeline, { gpu: name })} />
                </section>
              )}
            </>
          );
        }}
      </Here>
    </>
  );
}
