// The page follows the reader's choice of light or dark.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.getElementById("api").setAttribute("theme", dark.matches ? "dark" : "light");
dark.addEventListener("change", follow);
follow();
