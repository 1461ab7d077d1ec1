// Python lives here, so that the page stays alive whatever the program does.

let runner;

onmessage = async ({ data }) => {
  try {
    if (data.stop) runner.stop();
    else if (data.program === undefined) await start(data);
    else postMessage({ ended: await runner.run(data.program) });
  } catch (error) {
    postMessage({ broken: String(error.message ?? error) });
  }
};

async function start({ pyodide, wheel }) {
  const { loadPyodide } = await import(`${pyodide}pyodide.mjs`);
  const print = (text) => postMessage({ print: text });
  const python = await loadPyodide({ indexURL: pyodide, stdout: print, stderr: print });
  await python.loadPackage(wheel, { messageCallback: () => {} });
  python.registerJsModule("page", { plot: (step, loss) => postMessage({ step, loss }) });
  python.FS.writeFile("runner.py", await (await fetch("runner.py")).text());
  runner = python.pyimport("runner");
  postMessage({ ready: true });
}
