/** A GPU's timeline: a lane for each slice, a bar for each holding. */
import { useLoaded, type Device } from "../api/client";
import { Here, Twin } from "../parts";
import { useWords } from "../text";
import { lanesOf } from "./layout";
import { windows, type Colour } from "./page";

const WIDTH = 960;
const LEFT = 130;
const LANE = 22;
const HOUR = 3_600_000;

export function Timeline(props: { node: string; device: Device; until: number; hours: number; colour: Colour; name: string }) {
  const { node, device, until, hours, colour, name } = props;
  const words = useWords();
  const { texts, fill, time, clock } = words;
  // On a whole minute, so that the marks of the scale are.
  const to = Math.ceil(until / 60_000) * 60_000;
  const from = to - hours * HOUR;
  const loaded = useLoaded(`timeline ${node} ${device.gpu_uuid} ${from} ${to}`, () =>
    windows({ node, device: device.gpu_uuid, kind: "held", from, to }),
  );
  const title = fill(texts.timeline, { gpu: name });
  return (
    <section aria-labelledby="timeline">
      <h2 id="timeline">{title}</h2>
      <p className="quiet">{fill(texts.timelineOf, { hours, at: time(to) })}</p>
      <Here loaded={loaded}>
        {(found) => {
          const lanes = lanesOf(found.windows);
          const known = Math.min(to, found.cutAt ?? to);
          const x = (at: number) => LEFT + ((Math.min(Math.max(at, from), known) - from) / (to - from)) * (WIDTH - LEFT);
          const rows = Math.max(1, lanes.length);
          const height = rows * LANE + 24;
          const marks = Array.from({ length: 7 }, (_, mark) => from + (mark * (to - from)) / 6);
          // Where it was in service and vouched for, what nobody held was free; behind that nobody knows.
          const edge = (each: Device["in_service"][number]) => Date.parse(each.to ?? new Date(to).toISOString());
          return (
            <>
              {found.cutAt !== null && <p className="note">{fill(texts.cut, { at: time(found.cutAt) })}</p>}
              {lanes.length === 0 && <p className="note">{texts.nothingHeld}</p>}
              <div className="picture" role="group" aria-label={title} tabIndex={0}>
                <svg viewBox={`0 0 ${WIDTH} ${height}`} className="bars timeline" role="img" aria-label={title}>
                  {device.in_service.map((each) => {
                    const covered = Math.min(Date.parse(each.covered_to), edge(each));
                    return (
                      <g key={each.from}>
                        <rect x={x(Date.parse(each.from))} width={Math.max(0, x(covered) - x(Date.parse(each.from)))} y="0" height={rows * LANE} style={{ fill: "url(#hatch-idle)" }} />
                        <rect x={x(covered)} width={Math.max(0, x(edge(each)) - x(covered))} y="0" height={rows * LANE} style={{ fill: "url(#hatch-unknown)" }} />
                      </g>
                    );
                  })}
                  {lanes.map((lane, row) => (
                    <g key={`${lane.key} ${row}`}>
                      <text x={LEFT - 8} y={row * LANE + 15} textAnchor="end">{words.slice(lane.slice)}</text>
                      {lane.held.map((held) => (
                        <rect
                          key={held.from} x={x(held.from)} y={row * LANE + 2} height={LANE - 4} width={Math.max(1, x(held.to) - x(held.from))}
                          className="piece held" style={{ fill: colour({ kind: "held", tenant: held.tenant, use: null }) }}
                        >
                          <title>{`${held.holder} (${held.tenant ?? texts.unmapped}), ${time(held.from)} – ${time(held.to)}`}</title>
                        </rect>
                      ))}
                    </g>
                  ))}
                  {marks.map((mark, at) => (
                    <g key={mark}>
                      <line x1={LEFT + (at * (WIDTH - LEFT)) / 6} x2={LEFT + (at * (WIDTH - LEFT)) / 6} y1="0" y2={rows * LANE} className="scale" />
                      <text x={LEFT + (at * (WIDTH - LEFT)) / 6} y={height - 6} textAnchor={at === 0 ? "start" : at === 6 ? "end" : "middle"}>
                        {hours > 24 ? words.date(new Date(mark).toISOString().slice(0, 10)) : clock(mark)}
                      </text>
                    </g>
                  ))}
                </svg>
              </div>
              <Twin label={title}>
                <table>
                  <thead>
                    <tr>
                      <th scope="col">{texts.slice}</th>
                      <th scope="col">{texts.tenant}</th>
                      <th scope="col">{texts.holder}</th>
                      <th scope="col">{texts.from}</th>
                      <th scope="col">{texts.to}</th>
                    </tr>
                  </thead>
                  <tbody>
                    {lanes.flatMap((lane, row) =>
                      lane.held.map((held) => (
                        <tr key={`${row} ${held.from}`}>
                          <th scope="row">{words.slice(lane.slice)}</th>
                          <td>{held.tenant ?? texts.unmapped}</td>
                          <td>{held.holder}</td>
                          <td>{time(held.from)}</td>
                          <td>{time(held.to)}</td>
                        </tr>
                      )),
                    )}
                  </tbody>
                </table>
              </Twin>
            </>
          );
        }}
      </Here>
    </section>
  );
}
