// Types of tracegrad.js, the runtime that `train.export` ships.

export type DType = "f32" | "i32" | "u32" | "bool";
export type TypedArray =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Uint8ClampedArray
  | Int16Array | Uint16Array | Int32Array | Uint32Array;
/** An array that the runtime returns. The data of a `bool` array are an Int32Array of 0 and 1. */
export interface NDArray { dtype: DType; shape: number[]; data: Float32Array | Int32Array | Uint32Array }
/** An array that the runtime accepts. It checks values, and casts them to the input's dtype if no value changes. */
export type ArrayLike = number | boolean | TypedArray | { data: TypedArray; shape?: readonly number[] } | Nested;
export interface Nested extends ReadonlyArray<number | boolean | Nested> {}
export type Inputs = Record<string, ArrayLike>;
/** Hyperparameters by name. `groups` has those of groups of parameters, by the group's pattern. */
export type Hypers = Record<string, number | Record<string, Record<string, number>>>;
/** Arrays of examples by name, or the bytes of a safetensors file. */
export type Examples = Inputs | ArrayBuffer | Uint8Array;
/**
 * A schedule as plain data, as `schedule.spec()` gives it in Python. Rates (`rate`, `peak`, `final`) and `gamma` are at
 * least 0; `steps`, `every` and the factors are above 0; all are finite in f32. `start` is the step of the training that
 * is step 1 of the schedule; without it, the schedule begins at the next step. A wrong, missing or unknown field is an
 * InputError.
 */
export type Schedule = { start?: number | null } & (
  | { kind: "constant"; rate: number }
  | { kind: "linear"; peak: number; final: number; steps: number }
  | { kind: "cosine_annealing"; peak: number; final: number; steps: number }
  | { kind: "cosine_restarts"; peak: number; final: number; steps: number; growth: number }
  | { kind: "warmup"; peak: number; steps: number; after: number | Schedule }
  | { kind: "staircase"; peak: number; every: number; gamma: number }
  | { kind: "multi_step"; peak: number; milestones: number[]; gamma: number }
  | { kind: "exponential"; peak: number; gamma: number }
  | {
      kind: "plateau"; peak: number; factor: number; patience: number; threshold: number; mode: "min" | "max";
      threshold_mode: "rel" | "abs"; cooldown: number; min_lr: number; eps: number; now: number | null;
      best: number | null; bad: number; cooling: number;
    }
  | {
      kind: "one_cycle"; peak: number; steps: number; pct_start: number; div_factor: number; final_div_factor: number;
      anneal: "cos" | "linear";
    });
/** The bytes of a file, in memory of their own: also a part of a `Blob`. */
export type Bytes = Uint8Array & { readonly buffer: ArrayBuffer };
/** A checkpoint, and the step after which it was taken. */
export interface Kept { bytes: Bytes; step: number }

/** The result of a call that `destroy` ended, or that a newer call of `singleFlight` displaced. */
export interface Aborted { kind: "aborted"; reason: string }
/**
 * The result of a step or run that failed. `error.name` says why:
 *
 * - InputError, CompileError: the failed step changed nothing.
 * - NonFiniteError: the failed step changed nothing. The message names the inputs, parameters and gradients that are not
 *   finite.
 * - DeviceError: the device failed, and may have applied the step. Load a checkpoint.
 * - DeviceLostError: the device was lost. If another one could be opened, the training is back at the last checkpoint
 *   saved or loaded, or at its beginning if there is none; `stepCount` is the step of that checkpoint. If no device could
 *   be opened, the message says so. If the worker ended, every later call fails too: reload the page.
 *
 * The steps of `runSteps` before the failed one stay applied, unless the device was lost.
 */
export interface Failed { kind: "failed"; error: Error }
/**
 * The result of a step, or of `runSteps`. `loss` and `step` are those of the last step, `losses` has the loss of each
 * step. `aux` and `captures` are those of the last step, by name.
 */
export interface CompletedStep {
  kind: "completed";
  loss: number;
  losses: Float32Array;
  step: number;
  aux: Record<string, NDArray>;
  captures: Record<string, NDArray>;
}
/** The result of a run of a forward. `output` has the structure that the function returns in Python. */
export interface CompletedRun {
  kind: "completed";
  output: NDArray | NDArray[] | Record<string, NDArray>;
  captures: Record<string, NDArray>;
}
export type StepResult = CompletedStep | Aborted | Failed;
export type RunResult = CompletedRun | Aborted | Failed;

/** The name, type and shape of an input or a parameter, and further facts from program.json. */
export interface FieldInfo { name: string; dtype: DType; shape: number[]; spec: Record<string, unknown> }
export interface Info {
  adapter: string;
  title: string;
  seed: number;
  /** The names of the losses. A single loss has no name, so the list is empty. */
  losses: string[];
  /** The inputs, in their largest shapes. `spec.sizes` has the name of each axis whose size calls choose, else null. */
  inputs: FieldInfo[];
  params: FieldInfo[];
  /** The largest sizes that steps take, by name. */
  sizes: Record<string, number>;
  forwards: Record<string, { inputs: FieldInfo[]; sizes: Record<string, number> }>;
  /** The hyperparameters of the first loss. */
  hyper: Record<string, number>;
  /** The number of kernels of a step, and how often a step launches one. */
  kernels: number;
  dispatches: number;
}
/** A forward of the export. `inputs` have the shapes of the demo, `sizes` the largest sizes of a run. */
export interface Forward { readonly inputs: FieldInfo[]; readonly sizes: Record<string, number>; run(inputs: Inputs): Promise<RunResult> }

/** The loss that a call concerns: required if there are several losses. */
export interface OfLoss { loss?: string }
/** The progress of each of several losses, by name. */
export type Losses = Record<string, { stepCount: number; lr: number }>;

/**
 * A training in a worker. Calls run in the order in which you make them, on copies of their inputs. Steps are submitted
 * before earlier results are read, and calls that wait share a submission. Training is therefore faster if you do not
 * await each step before you call the next.
 */
export interface RemoteTraining {
  readonly info: Info;
  /** The number of steps applied, over all losses. */
  readonly stepCount: number;
  /** The learning rate of the next step, of the first loss. */
  readonly lr: number;
  readonly losses: Losses;
  /** The last checkpoint saved or loaded, also after the device or the worker was lost; null if there was none. */
  readonly lastCheckpoint: Kept | null;
  readonly forwards: Record<string, Forward>;
  /** Do one training step. Without inputs, it draws its batch from the data. The promise never rejects. */
  step(inputs?: Inputs): Promise<StepResult>;
  /** With several losses, the name of one comes first. */
  step(loss: string, inputs?: Inputs): Promise<StepResult>;
  /**
   * Do `n` steps, at most a million. Inputs have a leading axis of length `n`: step k takes element k. Without inputs,
   * each step draws its batch from the data. The promise never rejects.
   */
  runSteps(n: number, inputs?: Inputs): Promise<StepResult>;
  runSteps(loss: string, n: number, inputs?: Inputs): Promise<StepResult>;
  /**
   * Replace the examples from which steps draw. Give an array, with any number of examples along its leading axis, for
   * each input whose examples are in the export. The arrays stay on the device, which draws batches by seed and step.
   */
  setData(data: Examples): Promise<void>;
  /** Set the learning rate from the next call on. InputError, and no change, for a value that Python refuses too. */
  setLR(lr: number | Schedule, of?: OfLoss): Promise<void>;
  /** Report a metric, such as a held-out loss, to a plateau schedule. */
  lrMetric(value: number, of?: OfLoss): Promise<void>;
  /**
   * Set hyperparameters by name from the next call on; `groups: {"backbone.*": {lr: 0.1}}` sets those of groups.
   * InputError, and no change, for unknown names and values out of range. The ranges are PyTorch's: betas in [0, 1), eps,
   * weight_decay and momentum at least 0, clip_grad_norm above 0; all finite in f32.
   */
  set(hyper: Hypers, of?: OfLoss): Promise<void>;
  /** Stop updating parameters, until `unfreeze` is called: a pattern such as "backbone.*", or a list of patterns. */
  freeze(parameters: string | string[]): Promise<void>;
  unfreeze(parameters?: string | string[]): Promise<void>;
  /** Begin again: draw the parameters from `seed`, and clear the optimizer with its step counter, unless false. */
  reset(what?: { params?: boolean; optimizer?: boolean; seed?: number }): Promise<void>;
  /** Write parameters by name. InputError names every problem; then nothing is written. `strict`: all must be given. */
  uploadParams(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  /** Read the parameters, by name. */
  downloadParams(): Promise<Record<string, NDArray>>;
  /** Read the states of the model by name: running means, target networks, caches. */
  states(): Promise<Record<string, NDArray>>;
  /** Write states by name. InputError names every problem; then nothing is written. `strict`: all must be given. */
  setStates(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  /** Return the bytes of a checkpoint, which `train.load` in Python reads too. */
  saveCheckpoint(): Promise<Bytes>;
  /** Continue from a checkpoint made here or in Python. InputError, and no change, for a file that does not fit. */
  loadCheckpoint(bytes: ArrayBuffer | Uint8Array): Promise<void>;
  /** Free the device. Calls under way, and later calls, resolve as aborted or reject with AbortedError. */
  destroy(): void;
}

export interface LoadOptions {
  /** The text of program.json, or the value that JSON.parse returns for it. */
  manifest?: string | object;
  /** The bytes of weights.safetensors. null: draw the parameters from the seed. */
  weights?: ArrayBuffer | Uint8Array | null;
  /** The examples. null: begin without any; `setData` can set them later. */
  data?: Examples | null;
  /** The bytes or URL of checks.safetensors, read only if a kernel was not checked before. null: check no kernels. */
  checks?: ArrayBuffer | Uint8Array | string | null;
  worker?: Worker;
  /** Called with the number of kernels compiled, and of all kernels. */
  progress?: (done: number, all: number) => void;
}
/**
 * Load the training in the folder `url`, in a worker. Options replace files of that folder. InputError for a damaged
 * program.json or safetensors file; CompileError, with the line of the model, for a kernel that this device computes
 * wrongly.
 */
export function load(url: string, options?: LoadOptions): Promise<RemoteTraining>;

/** A training without a worker, for Node with Dawn: `gpu` is the result of `create([])` of the npm package `webgpu`. */
export class Training implements Omit<RemoteTraining, "info" | "stepCount" | "lr" | "losses" | "setData" | "setLR" | "set"> {
  static open(options: { manifest: string | object; weights?: ArrayBuffer | Uint8Array | null; data?: Examples | null;
    checks?: ArrayBuffer | Uint8Array | string | null; gpu?: unknown;
    progress?: (done: number, all: number) => void }): Promise<Training>;
  readonly info: Info;
  readonly state: { stepCount: number; lr: number; losses: Losses };
  readonly lastCheckpoint: Kept | null;
  readonly forwards: Record<string, Forward>;
  step(inputs?: Inputs): Promise<StepResult>;
  /** With several losses, the name of one comes first. */
  step(loss: string, inputs?: Inputs): Promise<StepResult>;
  runSteps(n: number, inputs?: Inputs): Promise<StepResult>;
  runSteps(loss: string, n: number, inputs?: Inputs): Promise<StepResult>;
  setData(data: Examples): Promise<void>;
  setLR(lr: number | Schedule, of?: OfLoss): void;
  lrMetric(value: number, of?: OfLoss): Promise<void>;
  /** Set hyperparameters by name; `groups: {"backbone.*": {lr: 0.1}}` sets those of groups. */
  set(hyper: Hypers, of?: OfLoss): void;
  /** Stop updating parameters, until `unfreeze` is called: a pattern such as "backbone.*", or a list of patterns. */
  freeze(parameters: string | string[]): Promise<void>;
  unfreeze(parameters?: string | string[]): Promise<void>;
  /** Begin again: draw the parameters from `seed`, and clear the optimizer with its step counter, unless false. */
  reset(what?: { params?: boolean; optimizer?: boolean; seed?: number }): Promise<void>;
  /** Write parameters by name. InputError names every problem; then nothing is written. `strict`: all must be given. */
  uploadParams(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  /** Read the parameters, by name. */
  downloadParams(): Promise<Record<string, NDArray>>;
  /** Read the states of the model by name: running means, target networks, caches. */
  states(): Promise<Record<string, NDArray>>;
  /** Write states by name. InputError names every problem; then nothing is written. `strict`: all must be given. */
  setStates(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  /** Return the bytes of a checkpoint, which `train.load` in Python reads too. */
  saveCheckpoint(): Promise<Bytes>;
  /** Continue from a checkpoint made here or in Python. InputError, and no change, for a file that does not fit. */
  loadCheckpoint(bytes: ArrayBuffer | Uint8Array): Promise<void>;
  /** Free the device. Calls under way, and later calls, resolve as aborted or reject with AbortedError. */
  destroy(): void;
}

/** Return a function that runs one call of `fn` at a time. The newest call waits; an older waiting call is aborted. */
export function singleFlight<A extends unknown[], R>(fn: (...args: A) => Promise<R> | R): (...args: A) => Promise<R | Aborted | Failed>;
/**
 * Return the manifest in the text of a program.json. InputError if it is of another version, or if any type, index, size
 * or offset in it is wrong.
 */
export function readManifest(json: string | object): object;
/** Say whether this browser can run a training. `message` says what is missing, and what to do. */
export function checkWebGPU(gpu?: unknown): Promise<{ ok: true; adapter: string } | { ok: false; message: string }>;
/** The worker's side of `load`. */
export function serve(scope: object): void;
