// Reads a line of JSON from standard input, and prints what `respond` makes of it, until the input ends.
import { createInterface } from "node:readline";

export const respondToLines = async (respond) => {
  for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(`\nRESULT ${JSON.stringify(await respond(JSON.parse(line)))}\n`);
  }
};
