// The bench's models as tracegrad exported them (export.py): the folder's own tracegrad.js runs them.

export async function open(name, s, { folder, gpu, read }) {
  const [{ Training }, program] = await Promise.all([import(/* @vite-ignore */ `${folder}/tracegrad.js`), read("program.json")]);
  const manifest = JSON.parse(program);
  const train = await Training.open({ manifest, gpu });
  const done = (result) => {
    if (result.kind !== "completed") throw result.error ?? new Error(result.reason);
    return result.loss;
  };
  let last;
  return {
    step(batch) {
      last = train.step(batch);
    },
    async loss() {
      return done(await last);
    },
    train,
    destroy: () => train.destroy(),
  };
}
