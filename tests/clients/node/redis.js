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

  told.heard = await heard(client, createClient({ socket: { port }, RESP: protocol }));

  await client.close();
  await reader.close();
  console.log(JSON.stringify(told));
}

/** Return what a subscriber hears, also after the server has closed its connection. */
async function heard(client, reader) {
  const messages = [];
  const hear = (message, channel) => messages.push([channel, message]);
  const said = async (count) => {
    while (messages.length < count) await new Promise((resolve) => setTimeout(resolve, 2));
  };
  reader.on("error", () => {}); // its connection is closed
  await reader.connect();
  await reader.subscribe(["a", "b"], hear);
  await reader.pSubscribe("c*", hear);
  await reader.sSubscribe("shard", hear);
  const receivers = [
    await client.publish("a", "1"),
    await client.publish("cc", "2"),
    await client.sPublish("shard", "3"),
  ];
  await said(3);
  await client.clientKill({ filter: "TYPE", type: "pubsub" });
  while ((await client.publish("b", "4")) === 0) continue;
  while ((await client.publish("cc", "5")) === 0) continue;
  await said(5);
  await reader.unsubscribe(["a", "b"]);
  await reader.pUnsubscribe("c*");
  await reader.sUnsubscribe("shard");
  receivers.push(await client.publish("a", "6"), await client.sPublish("shard", "7"));
  const pong = await reader.ping();
  await reader.close();
  return [messages, receivers, pong];
}

main(Number(process.argv[2]), Number(process.argv[3])).catch((error) => {
  console.error(error);
  process.exit(1);
});
