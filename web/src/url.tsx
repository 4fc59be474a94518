/**
 * The address is the state of a page: whoever sends it on shows another the same.
 */
import { useSyncExternalStore, type MouseEvent, type ReactNode } from "react";

const listeners = new Set<() => void>();
const tell = () => listeners.forEach((listener) => listener());
window.addEventListener("popstate", tell);

function subscribe(listener: () => void) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export interface Place {
  path: string;
  query: URLSearchParams;
}

export function usePlace(): Place {
  const text = useSyncExternalStore(subscribe, () => location.pathname + location.search);
  const at = new URL(text, location.origin);
  return { path: at.pathname, query: at.searchParams };
}

/** What becomes of parameters: a text is set, null takes one away, what is not named stays. */
export type Changes = Record<string, string | null>;

/** An address from this one. On another page nothing of the old page's state is kept but the language. */
export function address(place: Place, changes: Changes, path = place.path): string {
  const query = new URLSearchParams();
  for (const [key, value] of place.query) {
    if (path === place.path || key === "lang") query.set(key, value);
  }
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) query.delete(key);
    else query.set(key, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export function go(to: string) {
  history.pushState(null, "", to);
  tell();
}

interface LinkProps {
  to: string;
  children: ReactNode;
  current?: boolean;
  className?: string;
  label?: string;
}

export function Link({ to, children, current, className, label }: LinkProps) {
  const follow = (event: MouseEvent) => {
    // New tabs and downloads are the browser's own.
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} onClick={follow} className={className} aria-label={label} aria-current={current ? "page" : undefined}>
      {children}
    </a>
  );
}
