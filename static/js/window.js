// Shows where the window starts and how full it is, when that changes.
import { byId } from "./dom.js";
import { arrangeAgain } from "./transcript.js";

const { dataset } = byId("transcript");

export function showWindow({ key, floor, line, meter }) {
  dataset.window = key;
  dataset.floor = line ? floor : 0;
  byId("window-line").innerHTML = line;
  byId("meter").outerHTML = meter;
  arrangeAgain();
}
