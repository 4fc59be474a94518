// The page follows the reader's choice of light or dark.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.getElementById("api").setAttribute("theme", dark.matches ? "dark" : "light");
dark.addEventListener("change", follow);
follow();

// What is tried out here answers with made-up figures, where the service is a demo.
fetch("/healthz").then((answer) => {
  if (answer.headers.get("Fatia-Demo") === "true") document.getElementById("demo").hidden = false;
});
