/**
 * The API, typed by the service's own document: a field that is not there does not compile.
 */
import createClient from "openapi-fetch";
import { useEffect, useState } from "react";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Costs = Schemas["Costs"];
export type CostLine = Schemas["CostLine"];
export type Device = Schemas["Device"];
export type Divided = Schemas["DeviceLayout"];
export type Layout = Schemas["Layout"];
export type Piece = Schemas["LayoutPiece"];
export type Self = Schemas["Self"];

const KEY = "fatia.token";
/** Kept as long as the tab: a token is a secret, and other tabs need not know it. */
export const token = {
  read: () => sessionStorage.getItem(KEY),
  keep: (text: string) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/**
 * The token of a link to sign in: `#token=…`. A fragment is sent to nobody; it is taken out of the address and of the
 * history at once, so that it is neither copied nor seen.
 */
export function tokenOfAddress(): string | null {
  const text = new URLSearchParams(location.hash.slice(1)).get("token")?.trim();
  if (!text) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return text;
}

/** Whether the service shows made up data; each of its answers says so then. */
export const isDemo = (answer: Response) => answer.headers.get("Fatia-Demo") === "true";

/** What the service refuses, in its words. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

export const api = createClient<paths>({ baseUrl: "/" });
api.use({
  onRequest({ request }) {
    const text = token.read();
    if (text) request.headers.set("Authorization", `Bearer ${text}`);
    return request;
  },
  async onResponse({ response }) {
    if (response.ok) return;
    let detail = response.statusText;
    try {
      const problem = (await response.clone().json()) as { detail?: string; title?: string };
      detail = problem.detail ?? problem.title ?? detail;
    } catch {
      // Something between the page and the service answered; its status is all there is.
    }
    throw new Refusal(response.status, detail);
  },
});

/** The body of an answer; what is refused was thrown before. */
export async function body<T>(answer: Promise<{ data?: T }>): Promise<T> {
  const { data } = await answer;
  if (data === undefined) throw new Refusal(0, "");
  return data;
}

export type Loaded<T> = { state: "waiting" } | { state: "here"; value: T } | { state: "failed"; error: unknown };

const kept = new Map<string, { value: unknown; at: number }>();
/** Going back and forth in a page does not ask again; figures of the open hour are refreshed every five minutes. */
const FRESH_MS = 60_000;

export const forgetAnswers = () => kept.clear();

export function useLoaded<T>(key: string | null, load: () => Promise<T>): Loaded<T> {
  const known = key === null ? undefined : kept.get(key);
  const [answer, setAnswer] = useState<{ key: string; loaded: Loaded<T> } | null>(null);
  useEffect(() => {
    if (key === null) return;
    const now = kept.get(key);
    if (now && Date.now() - now.at < FRESH_MS) return;
    let isWanted = true;
    load().then(
      (value) => {
        kept.set(key, { value, at: Date.now() });
        if (isWanted) setAnswer({ key, loaded: { state: "here", value } });
      },
      (error: unknown) => {
        if (isWanted) setAnswer({ key, loaded: { state: "failed", error } });
      },
    );
    return () => {
      isWanted = false;
    };
    // The key says all that `load` depends on.
  }, [key]);
  if (answer && answer.key === key) return answer.loaded;
  if (known) return { state: "here", value: known.value as T };
  return { state: "waiting" };
}
