import { createRoot } from "react-dom/client";
import { App } from "./app";
import { Speaking } from "./text";
import "./style.css";

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <Speaking>
      <App />
    </Speaking>,
  );
}
