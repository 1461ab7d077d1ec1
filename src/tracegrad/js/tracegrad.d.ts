// Types of tracegrad.js, the runtime that `train.export` ships.

export type DType = "f32" | "i32" | "u32" | "bool";
export type TypedArray =
  | Float32Array | Float64Array | Int8Array | Uint8Array | Uint8ClampedArray
  | Int16Array | Uint16Array | Int32Array | Uint32Array;
/** What the runtime gives: `bool` as Int32Array of 0 and 1. */
export interface NDArray { dtype: DType; shape: number[]; data: Float32Array | Int32Array | Uint32Array }
/** What it takes: checked, and cast where nothing is lost. */
export type ArrayLike = number | boolean | TypedArray | { data: TypedArray; shape?: number[] } | Nested;
export interface Nested extends Array<number | boolean | Nested> {}
export type Inputs = Record<string, ArrayLike>;
/** Hyperparameters by name, and those of groups by their patterns. */
export type Hypers = Record<string, number | Record<string, Record<string, number>>>;
/** By name, or the bytes of a safetensors file. */
export type Examples = Inputs | ArrayBuffer | Uint8Array;
/**
 * A schedule as plain data, as `schedule.spec()` gives it in Python. Rates (`rate`, `peak`, `final`) and `gamma` are at
 * least 0; `steps`, `every` and the factors are above 0; all are finite in f32. `start` is the step of the training at
 * which the schedule's own step 1 falls; without it, the next one. InputError for a wrong, missing or unknown field.
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
/** A checkpoint, and the step after which it was taken. */
export interface Kept { bytes: Uint8Array; step: number }

export interface Aborted { kind: "aborted"; reason: string }
/**
 * Nothing was changed. `error.name`: InputError, NonFiniteError (its message names the inputs, parameters and gradients
 * that are not finite), DeviceError, CompileError. DeviceLostError: the device was replaced, and the training is back at
 * the last checkpoint saved or loaded; `stepCount` says which. Or it could not be: then every later call fails too.
 */
export interface Failed { kind: "failed"; error: Error }
export interface CompletedStep {
  kind: "completed";
  loss: number;
  losses: Float32Array;
  step: number;
  aux: Record<string, NDArray>;
  captures: Record<string, NDArray>;
}
export interface CompletedRun {
  kind: "completed";
  output: NDArray | NDArray[] | Record<string, NDArray>;
  captures: Record<string, NDArray>;
}
export type StepResult = CompletedStep | Aborted | Failed;
export type RunResult = CompletedRun | Aborted | Failed;

export interface FieldInfo { name: string; dtype: DType; shape: number[]; spec: Record<string, unknown> }
export interface Info {
  adapter: string;
  title: string;
  seed: number;
  /** Names of the losses; none if there is one loss, which has no name. */
  losses: string[];
  /** In the largest shapes. `spec.sizes` has the name of each axis whose size calls choose, null for the others. */
  inputs: FieldInfo[];
  params: FieldInfo[];
  /** The largest sizes that steps take, by name. */
  sizes: Record<string, number>;
  forwards: Record<string, { inputs: FieldInfo[]; sizes: Record<string, number> }>;
  hyper: Record<string, number>;
  kernels: number;
  dispatches: number;
}
/** `inputs` have the shapes of the demo, `sizes` the largest sizes of a run. */
export interface Forward { readonly inputs: FieldInfo[]; readonly sizes: Record<string, number>; run(inputs: Inputs): Promise<RunResult> }

/** With several losses, the name of one. */
export interface OfLoss { loss?: string }
/** The progress of each of several losses, by name. */
export type Losses = Record<string, { stepCount: number; lr: number }>;

/**
 * A training in a worker. Calls are done in order; inputs are copied. Steps are submitted ahead of their results, and
 * calls that wait share a submission: whoever does not await every step goes faster.
 */
export interface RemoteTraining {
  readonly info: Info;
  /** Steps applied, over all losses. */
  readonly stepCount: number;
  /** The learning rate of the next step, of the first loss. */
  readonly lr: number;
  readonly losses: Losses;
  /** The last checkpoint saved or loaded. It can be had even when the device or the worker is lost. */
  readonly lastCheckpoint: Kept | null;
  readonly forwards: Record<string, Forward>;
  step(inputs?: Inputs): Promise<StepResult>;
  /** With several losses, the name of one comes first. */
  step(loss: string, inputs?: Inputs): Promise<StepResult>;
  /** Inputs with a leading axis of length `n`, at most a million, are split. With none, every step draws its batch from the data. */
  runSteps(n: number, inputs?: Inputs): Promise<StepResult>;
  runSteps(loss: string, n: number, inputs?: Inputs): Promise<StepResult>;
  /**
   * Other examples to draw from, of any number: a leading axis for each input that the export had examples of. They stay
   * on the device, where batches are drawn by seed and step.
   */
  setData(data: Examples): Promise<void>;
  /** InputError for a number or schedule that Python refuses too; nothing is changed then. */
  setLR(lr: number | Schedule, of?: OfLoss): Promise<void>;
  /** Tell the schedule plateau a metric, such as a held-out loss. */
  lrMetric(value: number, of?: OfLoss): Promise<void>;
  /**
   * Set values by name; `groups: {"backbone.*": {lr: 0.1}}` sets those of groups.
   * InputError for unknown names and values out of range; nothing is changed then. The ranges are PyTorch's: betas in
   * [0, 1), eps, weight_decay and momentum at least 0, clip_grad_norm above 0; all finite in f32.
   */
  set(hyper: Hypers, of?: OfLoss): Promise<void>;
  /** Leave parameters alone, or train them again: a pattern such as "backbone.*", or a list. */
  freeze(parameters: string | string[]): Promise<void>;
  unfreeze(parameters?: string | string[]): Promise<void>;
  reset(what?: { params?: boolean; optimizer?: boolean; seed?: number }): Promise<void>;
  uploadParams(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  downloadParams(): Promise<Record<string, NDArray>>;
  /** States of the model by name: running means, target networks, caches. */
  states(): Promise<Record<string, NDArray>>;
  /** InputError naming every problem; nothing was written then. `strict`: every state must be there. */
  setStates(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  saveCheckpoint(): Promise<Uint8Array>;
  loadCheckpoint(bytes: ArrayBuffer | Uint8Array): Promise<void>;
  /** What is under way resolves as aborted. */
  destroy(): void;
}

export interface LoadOptions {
  /** The text of program.json, or what JSON.parse makes of it. */
  manifest?: string | object;
  /** null: not those of the export, but drawn from the seed. */
  weights?: ArrayBuffer | Uint8Array | null;
  /** null: without the examples of the export; `setData` can bring others. */
  data?: Examples | null;
  /** checks.safetensors, or where it is: read only where a kernel was not checked before. null: kernels are not checked. */
  checks?: ArrayBuffer | Uint8Array | string | null;
  worker?: Worker;
  progress?: (done: number, all: number) => void;
}
/**
 * The training in the folder `url`, in a worker. InputError for a program.json or safetensors file that is damaged;
 * CompileError, with the line of the model, for a kernel that this device computes wrongly.
 */
export function load(url: string, options?: LoadOptions): Promise<RemoteTraining>;

/** The same without a worker, for Node with Dawn: `gpu` is what `create([])` of the npm package `webgpu` gives. */
export class Training implements Omit<RemoteTraining, "info" | "stepCount" | "lr" | "setData" | "setLR" | "set"> {
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
  /** Values by name; `groups: {"backbone.*": {lr: 0.1}}` sets those of groups. */
  set(hyper: Hypers, of?: OfLoss): void;
  /** Leave parameters alone, or train them again: a pattern such as "backbone.*", or a list. */
  freeze(parameters: string | string[]): Promise<void>;
  unfreeze(parameters?: string | string[]): Promise<void>;
  reset(what?: { params?: boolean; optimizer?: boolean; seed?: number }): Promise<void>;
  uploadParams(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  downloadParams(): Promise<Record<string, NDArray>>;
  /** States of the model by name: running means, target networks, caches. */
  states(): Promise<Record<string, NDArray>>;
  /** InputError naming every problem; nothing was written then. `strict`: every state must be there. */
  setStates(record: Inputs, options?: { strict?: boolean }): Promise<void>;
  saveCheckpoint(): Promise<Uint8Array>;
  loadCheckpoint(bytes: ArrayBuffer | Uint8Array): Promise<void>;
  destroy(): void;
}

/** At most one call running and one queued; the newest wins, and one displaced resolves as aborted. */
export function singleFlight<A extends unknown[], R>(fn: (...args: A) => Promise<R> | R): (...args: A) => Promise<R | Aborted | Failed>;
/**
 * The manifest in the text of a program.json. InputError if it is of another version, or if any type, index, size or
 * offset in it is wrong.
 */
export function readManifest(json: string | object): object;
export function checkWebGPU(gpu?: unknown): Promise<{ ok: true; adapter: string } | { ok: false; message: string }>;
/** The worker's side of `load`. */
export function serve(scope: object): void;
