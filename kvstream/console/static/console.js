// What the console has with JavaScript: live content, times, keys. Every page works without it.
import { startLive } from "./live.js";
import { startTimes } from "./times.js";
import { startKeys } from "./keys.js";

startTimes();
startKeys();
startLive(document.getElementById("main"));
