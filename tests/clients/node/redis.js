// What a node-redis program does with streams, in RESP2 or RESP3; its findings go to stdout as JSON.
const { createClient } = require("redis");

async function main(port, protocol) {
  const told = {};
  const client = createClient({
    socket: { port, reconnectStrategy: false },
    RESP: protocol,
    unstableResp3: true, // XREAD is given as it comes
  });
  client.on("error", (error) => console.error(error));
  await client.connect();
  const reader = client.duplicate();
  reader.on("error", (error) => console.error(error));
  await reader.connect();

  const id = await client.xAdd("node", "1-1", { sku: "a1", qty: "2" });
  told.added = [id, await client.xRange("node", "-", "+"), await client.xLen("node")];

  await client.xGroupCreate("node", "group", "0");
  told.read = await client.xReadGroup("group", "ann", { key: "node", id: ">" }, { COUNT: 10 });
  told.pending = (await client.xPending("node", "group")).pending;
  told.claimed = (await client.xAutoClaim("node", "group", "bob", 0, "0")).messages;
  told.acked = await client.xAck("node", "group", id);
  const info = await client.xInfoStream("node");
  told.length = info.length;
  told.groups = (await client.xInfoGroups("node")).map((group) => [group.name, group.pending]);

  const waiting = reader.xRead({ key: "node", id: "$" }, { BLOCK: 10000 });
  while (!/blocked_clients:1\r/.test(await client.info("clients"))) continue;
  await client.xAdd("node", "2-1", { late: "1" });
  told.waited = await waiting;

  told.multi = await client.multi().xAdd("node", "3-1", { in: "multi" }).set("k", "v").exec();
  const counts = Array.from({ length: 100 }, () => client.incr("n")); // one pipeline
  told.pipeline = await Promise.all(counts);
  told.lock = [
    await client.set("lock", "me", { condition: "NX", expiration: { type: "EX", value: 100 } }),
    await client.set("lock", "you", { condition: "NX" }),
  ];
  told.error = await client.get("node").catch((error) => error.message);
  told.keys = [];
  for await (const keys of client.scanIterator({ COUNT: 1000 })) told.keys.push(...keys);
  told.keys.sort();

  await client.close();
  await reader.close();
  console.log(JSON.stringify(told));
}

main(Number(process.argv[2]), Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
