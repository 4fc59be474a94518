/** The frame: who is signed in, which page is shown, in which language and colours. */
import { useEffect, useState, type FormEvent } from "react";
import { api, body, forgetAnswers, isDemo, Refusal, token, tokenOfAddress, useLoaded, type Self } from "./api/client";
import { Fleet } from "./fleet/page";
import { Month } from "./month/page";
import { Choice, Here } from "./parts";
import { keepLanguage, useWords, type Language } from "./text";
import { address, go, Link, usePlace } from "./url";

type Theme = "auto" | "light" | "dark";
const THEME = "fatia.theme";

function useTheme(): [Theme, (theme: Theme) => void] {
  const [theme, setTheme] = useState<Theme>((localStorage.getItem(THEME) as Theme | null) ?? "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem(THEME, theme);
  }, [theme]);
  return [theme, setTheme];
}

export function App() {
  const { texts, language, fill } = useWords();
  const place = usePlace();
  const [secret, setSecret] = useState(token.read());
  const [theme, setTheme] = useTheme();
  const self = useLoaded(secret ? `self ${secret}` : null, () => body(api.GET("/api/v1/self")));
  const isRefused = self.state === "failed" && self.error instanceof Refusal && self.error.status === 401;
  const isIn = secret !== null && !isRefused;
  const page = place.path === "/fleet" ? "fleet" : place.path === "/" || place.path === "/month" ? "month" : null;
  useEffect(() => {
    document.title = `${page ? texts[page] : texts.notFound} – Fatia`;
  }, [page, texts]);

  const signIn = (text: string) => {
    forgetAnswers();
    token.keep(text);
    setSecret(text);
  };
  // In a page that is open a link to sign in changes the fragment alone: nothing is loaded again.
  useEffect(() => {
    const follow = () => {
      const linked = tokenOfAddress();
      if (linked) signIn(linked);
    };
    window.addEventListener("hashchange", follow);
    return () => window.removeEventListener("hashchange", follow);
  }, []);
  const signOut = () => {
    forgetAnswers();
    token.forget();
    setSecret(null);
  };
  return (
    <>
      <a className="skip" href="#content">{texts.skip}</a>
      <header className="top">
        <span className="brand">Fatia</span>
        <nav aria-label={texts.pages}>
          <Link to={address(place, {}, "/month")} current={page === "month"}>{texts.month}</Link>
          <Link to={address(place, {}, "/fleet")} current={page === "fleet"}>{texts.fleet}</Link>
          <a href="/docs">{texts.apiDocs}</a>
        </nav>
        <div className="settings">
          <Choice<Language>
            label={texts.language}
            value={language}
            options={[{ value: "en", text: "English" }, { value: "pt-BR", text: "Português (Brasil)" }]}
            choose={(value) => {
              keepLanguage(value);
              go(address(place, { lang: value }));
            }}
          />
          <Choice<Theme>
            label={texts.colours}
            value={theme}
            options={[{ value: "auto", text: texts.auto }, { value: "light", text: texts.light }, { value: "dark", text: texts.dark }]}
            choose={setTheme}
          />
          {isIn && <button type="button" onClick={signOut}>{texts.signOut}</button>}
        </div>
      </header>
      <DemoLine self={self.state === "here" ? self.value : null} />
      <main id="content" tabIndex={-1}>
        {!isIn ? (
          <SignIn isRefused={isRefused} signIn={signIn} />
        ) : (
          <Here loaded={self}>
            {(who) => (
              <>
                <Page page={page} self={who} />
                <footer>
                  <p>{fill(texts.signedInAs, { name: who.name, role: who.role })}</p>
                </footer>
              </>
            )}
          </Here>
        )}
      </main>
    </>
  );
}

/** On all pages and on paper: nobody shall take figures of a demo for somebody's. */
function DemoLine({ self }: { self: Self | null }) {
  const { texts } = useWords();
  const health = useLoaded("demo", async () => isDemo(await fetch("/healthz")));
  // Said to everybody, and once more to whoever is signed in.
  const isIt = self?.demo === true || (health.state === "here" && health.value);
  useEffect(() => {
    document.documentElement.toggleAttribute("data-demo", isIt);
  }, [isIt]);
  if (!isIt) return null;
  return <aside className="demo" aria-label={texts.demo}>{texts.demoLine}</aside>;
}

function Page({ page, self }: { page: "month" | "fleet" | null; self: Self }) {
  const { texts } = useWords();
  if (page === null) return <h1>{texts.notFound}</h1>;
  if (page === "month") {
    return self.permissions.includes("reports:read") ? <Month self={self} /> : <><h1>{texts.month}</h1><p>{texts.noReports}</p></>;
  }
  return self.permissions.includes("fleet:read") && self.permissions.includes("usage:read") ? (
    <Fleet />
  ) : (
    <><h1>{texts.fleet}</h1><p>{texts.noFleet}</p></>
  );
}

function SignIn({ isRefused, signIn }: { isRefused: boolean; signIn: (text: string) => void }) {
  const { texts } = useWords();
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget).get("token") ?? "").trim();
    if (text) signIn(text);
  };
  return (
    <form className="sign-in" onSubmit={submit}>
      <h1>{texts.signIn}</h1>
      {isRefused && <p role="alert" className="note bad">{texts.badToken}</p>}
      <label htmlFor="token">{texts.token}</label>
      <input id="token" name="token" type="password" autoComplete="off" required aria-describedby="token-help" />
      <p id="token-help" className="quiet">
        {texts.tokenHelp.split("`").map((piece, index) => (index % 2 ? <code key={index}>{piece}</code> : piece))}
      </p>
      <button type="submit" className="first">{texts.signIn}</button>
    </form>
  );
}
