/** What both pages are made of. */
import type { ReactNode } from "react";
import { forgetAnswers, Refusal, type Loaded } from "./api/client";
import { useWords } from "./text";

/** Shows what was loaded, or how far that is. */
export function Here<T>({ loaded, children }: { loaded: Loaded<T>; children: (value: T) => ReactNode }) {
  const { texts } = useWords();
  if (loaded.state === "here") return children(loaded.value);
  if (loaded.state === "waiting") return <p role="status" className="waiting">{texts.waiting}</p>;
  const { error } = loaded;
  const again = () => {
    forgetAnswers();
    location.reload();
  };
  return (
    <div role="alert" className="note bad">
      <p>
        {texts.failed} {error instanceof Refusal ? error.message : String(error)}
      </p>
      <button type="button" onClick={again}>{texts.tryAgain}</button>
    </div>
  );
}

/** A wide table may be wider than a narrow window: then it is scrolled, also by keys. */
export function Wide({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="wide" role="group" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

/** The table that says what a picture shows. */
export function Twin({ label, children }: { label: string; children: ReactNode }) {
  const { texts } = useWords();
  return (
    <details className="twin">
      <summary>{texts.asTable}</summary>
      <Wide label={label}>{children}</Wide>
    </details>
  );
}

/** A choice among a few, held by the address. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  options: readonly { value: T; text: string }[];
  choose: (value: T) => void;
}) {
  return (
    <label className="choice">
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.choose(event.target.value as T)}>
        {props.options.map((option) => (
          <option key={option.value} value={option.value}>{option.text}</option>
        ))}
      </select>
    </label>
  );
}
