// An ioredis program that adds through Sentinels until its input ends; it repeats what fails.
const Redis = require("ioredis");

async function main(name, ports) {
  const sentinels = ports.map((port) => ({ host: "127.0.0.1", port: Number(port) }));
  const redis = new Redis({ sentinels, name, maxRetriesPerRequest: null });
  redis.on("error", () => {}); // it connects again
  let stops = false;
  process.stdin.on("end", () => (stops = true)).resume();
  const ids = [];
  let failed = 0;
  for (let n = 0; !stops || n % 10; n++) {
    let id = null;
    while (id === null) {
      try {
        id = await redis.xadd("of-ioredis", "IDMP", "adder", String(n), "*", "n", String(n));
      } catch (error) {
        failed++;
        await new Promise((done) => setTimeout(done, 50));
        if (!/READONLY|NOREPLICAS|LOADING|UNBLOCKED/.test(error.message)) throw error;
        redis.disconnect(true); // and ask the Sentinels anew
      }
    }
    ids.push(id);
    if (n === 0) console.error("adds");
    await new Promise((done) => setTimeout(done, 2));
  }
  console.log(JSON.stringify({ ids, failed }));
  redis.disconnect();
}

main(process.argv[2], process.argv.slice(3));
