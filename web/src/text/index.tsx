/**
 * Two languages, and numbers and times as they are written there.
 *
 * Decimals come as texts and are handed to the formatter as texts: it rounds what is shown, and no sum is made here.
 */
import { createContext, useContext, useMemo, type ReactNode } from "react";
import { usePlace } from "../url";
import { en, type Texts } from "./en";
import { pt } from "./pt";

/** The first instant of a day in a zone: as far from midnight in UTC as its clocks are, or where they jump over midnight. */
export function startOfDay(day: string, zone: string): number {
  const midnight = Date.parse(`${day}T00:00:00Z`);
  const clock = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", timeZone: zone });
  const ahead = (at: number) => Date.parse(`${clock.format(at).replace(" ", "T")}Z`) - at;
  const at = midnight - ahead(midnight - ahead(midnight));
  return clock.format(at) < day ? midnight - ahead(midnight) : at;
}

export type Language = "en" | "pt-BR";
const KEY = "fatia.lang";

export function languageOf(query: URLSearchParams): Language {
  const wanted = query.get("lang") ?? localStorage.getItem(KEY) ?? navigator.language;
  return wanted.toLowerCase().startsWith("pt") ? "pt-BR" : "en";
}

export const keepLanguage = (language: Language) => localStorage.setItem(KEY, language);

/** A decimal text: TypeScript's own types know that formatters take it. */
type Decimal = `${number}`;

function words(language: Language) {
  const texts: Texts = language === "en" ? en : pt;
  const plural = new Intl.PluralRules(language);
  const hours = new Intl.NumberFormat(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat(language, { minimumFractionDigits: 6, maximumFractionDigits: 6 });
  const percent = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
  const portion = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat(language, { maximumSignificantDigits: 3, notation: "compact" });
  const fill = (text: string, values: Record<string, string | number>) =>
    text.replace(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ""));
  const count = (forms: { one: string; other: string }, n: number) =>
    fill(plural.select(n) === "one" ? forms.one : forms.other, { n: n.toLocaleString(language) });
  return {
    language,
    texts,
    fill,
    count,
    hours: (text: string) => hours.format(text as Decimal),
    exact: (text: string) => exact.format(text as Decimal),
    money: (text: string | null | undefined, currency: string) =>
      text == null
        ? texts.noCost
        : new Intl.NumberFormat(language, { style: "currency", currency }).format(text as Decimal),
    percent: (share: number) => percent.format(share),
    /** A part of a whole, in columns. What there is is never said to be nothing. */
    portion: (share: number) => (share > 0 && share < 0.0005 ? `<${portion.format(0.001)}` : portion.format(share)),
    /** A slice's size: what is declared in millionths, parts or percent is said as people would. */
    slice: (path: string) => {
      const size = path.replace(/^.*\//, "");
      const ppm = /^(\d+)ppm$/.exec(size);
      if (ppm) return percent.format(Number(ppm[1]) / 1e6);
      const threads = /^(\d+)percent$/.exec(size);
      if (threads) return percent.format(Number(threads[1]) / 100);
      const devices = /^(\d+)devices$/.exec(size);
      if (devices) return count(texts.gpus, Number(devices[1]));
      return size.replace(/^1of(\d+)$/, "1/$1").replace(/^device$/, texts.gpu);
    },
    short: (value: number) => short.format(value),
    date: (day: string) =>
      new Intl.DateTimeFormat(language, { day: "numeric", month: "short", timeZone: "UTC" }).format(new Date(`${day}T00:00:00Z`)),
    monthName: (month: string) =>
      new Intl.DateTimeFormat(language, { month: "long", year: "numeric", timeZone: "UTC" }).format(new Date(`${month}-01T00:00:00Z`)),
    monthAlone: (month: string) =>
      new Intl.DateTimeFormat(language, { month: "long", timeZone: "UTC" }).format(new Date(`${month}-01T00:00:00Z`)),
    time: (instant: string | number, zone = "UTC") =>
      `${new Intl.DateTimeFormat(language, {
        day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: zone,
      }).format(new Date(instant))} ${zone}`,
    clock: (instant: number) =>
      new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone: "UTC" }).format(new Date(instant)),
    word: (kind: "states" | "modes" | "kinds" | "findingKinds", word: string) => (texts[kind] as Record<string, string>)[word] ?? word,
  };
}

export type Words = ReturnType<typeof words>;
const Context = createContext<Words>(words("en"));
export const useWords = () => useContext(Context);

export function Speaking({ children }: { children: ReactNode }) {
  const language = languageOf(usePlace().query);
  const value = useMemo(() => {
    document.documentElement.lang = language;
    return words(language);
  }, [language]);
  return <Context value={value}>{children}</Context>;
}
