import { createRoot } from "react-dom/client";
import { token, tokenOfAddress } from "./api/client";
import { App } from "./app";
import { Speaking } from "./text";
import "./style.css";

const linked = tokenOfAddress();
if (linked) token.keep(linked);

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <Speaking>
      <App />
    </Speaking>,
  );
}
