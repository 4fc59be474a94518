/** Reports of a month, and what all sections say of them. */
import { api, body, type Costs } from "../api/client";

/** The tenant of what nobody held. */
export const PLATFORM = "platform";

export const isMonth = (text: string | null): text is string => text !== null && /^\d{4}-(0[1-9]|1[0-2])$/.test(text);

export function monthBeside(month: string, by: number): string {
  const [year = 2000, number = 1] = month.split("-").map(Number);
  const at = new Date(Date.UTC(year, number - 1 + by, 1));
  return at.toISOString().slice(0, 7);
}

export async function costs(period: string, groupBy: readonly string[]): Promise<Costs> {
  const query = { period, group_by: groupBy.join(",") };
  const report = await body(api.GET("/api/v1/reports/costs", { params: { query } }));
  // Only who asks for CSV is answered a text.
  if (typeof report === "string") throw new TypeError("a report came as text");
  return report;
}

export const runningMonth = () => new Date().toISOString().slice(0, 7);

/** For bars, percentages and order, which are pictures of figures. */
export const size = (text: string | null | undefined) => (text == null ? 0 : Number(text));
