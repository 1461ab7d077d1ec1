"""Tuning constants: thresholds, sizes and costs from measurements, which another machine can change.

Each row is `NAME = value  # unit | meaning | measured on`. H200 and H100 are GPUs of NVIDIA, "2
cores" an x86 machine, and llvmpipe the software GPU on two cores. "?" is an unrecorded machine, and "-" means reasoned,
not measured.
`python bench/refit.py` measures rows again on the current machine. Name that machine in a row that you change.
Another value changes only speed and rounding. Limits of WGSL, of file formats and of mathematics are defined where they
apply.
"""

# --- Stored or computed again ---

PRODUCT_READS = 6  # times | a product may compute an inlined operand again, once per tile of the other operand | ?
WIDER_READS = 12  # times | cost of a value, above which a reader that repeats it finds it stored | ?
SPREAD = 8  # times | larger than all its inputs together, a value is computed again for each reader | 2 cores
ONE_GROUP = 1024  # points | of one row that the threads folding it can compute, too | H200
RECOMPUTED = 4096  # elements | of a fold that every workgroup may compute again: about 32 a thread | ?
RECOMPUTE_FROM = 2**19  # elements | of a value, from which the backward pass computes it again | ?
MUCH_SMALLER = 16  # times | smaller than such a value its inputs must be, if they are kept instead of it | ?

# --- Folds and products in two steps ---

SPLIT_FROM = 2048  # elements | of a fold, from which it is split: one workgroup has enough work for a shorter one | ?
FEW_OUTPUTS = 8192  # results | of a fold, from which the device is busy without a split | ?
LONG_ROW = 4096  # elements | of a fold over neighbours, which is split from here: a workgroup reads them fast | H100
LONG_PART = 2048  # elements | of a part of such a fold: shorter ones spend their time on joining lanes | 2 cores
SOME_ROWS = 16  # rows | for each LONG_ROW elements of a row, from which rows are not split | -
FEW_ROWS = 256  # rows | from which rows are not split, whatever their length | H100
EACH_FROM = 16  # elements | of each example, from which a sum over an open batch sums each example first | -
EACH_READS = 8  # times | as many elements as results, from which a product over an open batch does so | 2 cores
OPEN_BATCH = 64  # examples | in an open batch, where a split depends on how many there are | -
OPEN_PARTS = 8  # parts | of such a split at most: more are slower where the batch is small | H200
SMALL_BATCH = 8  # times | smaller than an open batch's capacity: the batch that also chooses tiles | H200
SHORTEST_SCATTER = 1024  # updates | of a scatter in one part | -
EACH_SCATTERED = 16  # updates | of each row in one part of a scatter | -
SCATTER_FEWER = 3  # times | fewer parts than a GPU's best for other scatters: C sums parts slowly | 2 cores
SHORTEST_PART = 64  # elements | of k in a part of a product | ?
MOST_PARTS = 256  # parts | of one fold or product | ?
SECOND_STEP = 1.5e6  # sums | of one processor, that the second step costs besides its traffic; see product_time | ?
UNEVEN = 2  # times | as many or as few parts a fold may have as balanced steps | -
PARTIAL_TRAFFIC = 0.5  # sums | of one processor, to write and read one partial result | ?

# --- Loops ---

LIFTED_BYTES = 2**24  # bytes | of values of all iterations that may always be stored to work on them at once | -
LIFTED_TIMES = 4  # times | the memory of a scan's elements and results, that the same values may take | -

LOOP_THREADS = 256  # threads | of a workgroup that runs all iterations of a loop: what every device allows | H100
FEWEST_BLOCKS = 8  # blocks | of a loop that run side by side; fewer leave a large GPU idle | -
MOST_BLOCKS = 4096  # blocks | of a loop: more keep a device busy in every iteration | -
BLOCK_POINTS = 64  # points | of a kernel that keep the workgroup of a block busy | -
MOST_FOLDED = 2**17  # points | that one kernel folds for a block: a launch costs less than more of them | H100
BLOCK_WORK = 2**12  # points | of a kernel for a block, on average, without operands in registers: the same | H200
SHORTEST_LANE = 4  # points | of a row that each of several threads folds | -
MOST_LOOP_TURNS = 2**17  # kernels | that a launch runs one after another: they take some tenths of a second | -
KEPT_IN_REGISTERS = 192  # numbers | that a thread keeps from one iteration to the next | H100
STREAMED_TOGETHER = 16  # numbers | beyond KEPT_IN_REGISTERS that a thread reads at a time | H100

# --- Launches ---

FULL = 8192  # workgroups | beyond which a kernel keeps a device busy alone | ?
ALONE = 2**28  # points | folded in all, from which a kernel runs far longer than a launch costs | ?
KEPT_ALIVE = 2**18  # elements | that a kernel may keep alive by running later than it could | ?

# --- Workgroups and tiles of WGSL ---

WORKGROUP = 128  # threads | of a workgroup: each may have two hundred registers | ?
SHORT_ROW = 9  # elements | of a row that several threads fold where one thread a row leaves a GPU idle | H200
COOPERATE_FROM = 32  # elements | of a row from which several threads fold it | ?
TILE_FROM = 16  # rows, columns | of a product from which tiles compute it | ?
HALF_TILE_FROM = 8  # rows, columns | of a product that half-empty tiles compute, where there are enough tiles | ?
SCATTER_FROM = 2**28  # comparisons | of targets with rows, from which a scatter has its own kernel | H200
NARROW_SCATTER_FROM = 2**24  # comparisons | the same where a product would not fill a tile | H200
NARROW_SCATTER_RESULTS = 6000  # results | of such a scatter at least: for fewer, folding all updates is faster | H200
SCATTER_ACROSS = 64  # threads | side by side along the columns of a scatter: more would look for the same updates | -
SCATTER_TOGETHER = 2048  # updates | that a workgroup of a scatter looks at together, at most | H100
SCATTER_FEW = 4  # updates | of one word of bits that a thread adds before others: most words have no more | H200
SCATTER_READS = 16  # updates | of several words that it reads after these before it adds them | H100
SCATTER_DEEP = 8  # rows | of one column that a thread sums, at most | H200
SCATTER_GROUPS = 512  # workgroups | of a scatter that keep a large GPU busy | H200
PROCESSORS = 132  # processors | of a large GPU; small ones are busy sooner | H200
LEAST_STEP = 16  # elements | of k in one step of a tile | ?
LEAST_SLICE = 4  # elements | of a step for each slice: two barriers for fewer take longer than dividing indices | ?
FEW_STEPS = 4  # steps | of a tile without slices, up to which they are halved: nothing hides the first load | H200
TILE_FILL = 64  # steps | of k that beginning and ending a tile take | H200
LINE_PADDING = 4  # elements | behind each line in workgroup memory: writes along k then meet no bank twice | ?
EXCHANGED = 2048  # elements | partial results that threads pass to each other at a time | ?
LONG_COLUMN = 512  # elements | from which 32 threads sum a column: 8 take 6 us longer for 1008 | H200
HELD = 16  # elements | of a row that a thread keeps in registers | ?
NEIGHBOURS = 8  # rows | along the last axis that a thread folds side by side, at most: 9 gain nothing | H200
NEIGHBOURING_TERMS = 12  # terms | of such rows that it computes side by side, if it computes several turns | H200
NEIGHBOURS_FROM = 1024  # rows times turns | from which workgroups are enough for neighbours: 800 take longer | H200
LAST_LANES = 8  # parts | of a row that each of its lanes combines for itself | ?
TURNS_TOGETHER = 4  # turns | of a loop that a thread computes side by side | ?
MANY_POINTS = 2**20  # points | from which a large GPU is busy with several points a thread | ?
MANY_THREADS = 2**18  # threads | that keep a large GPU busy | ?
UNIFORM_GROUPS = 1024  # workgroups | that may each compute a value that all of them need | ?
SHORT_TURNS = 4  # turns | of a loop over k, up to which it is written out | ?
LOAD_RUN = 8  # elements | along k that neighbouring threads load of an operand contiguous along k: 32 bytes | ?
LOAD_PAIR = 2  # threads | side by side along k that load blocks: 32 bytes | ?
ROWS_TOGETHER = 2  # rows | of results that a thread finishes side by side, so that their loads overlap | ?
WRITTEN_OUT = 16  # turns | of the innermost loop, up to which it is written out: as a loop they take twice as long | ?

# --- WGSL on a CPU, without barriers ---

SERIAL_UNIFORM = 512  # threads | that may each compute a value that all of them need | ?
SERIAL_WORKGROUP = 32  # threads | of a workgroup: few threads still occupy all cores | ?
SQUARE = 8  # results | a side of a square: 2, 4, 8, 12 give 1.4, 2.9, 5.2, 5.3 GFLOP/s on two cores | llvmpipe
SMALL_SQUARE = 4  # results | a side where k is written out or the product is small | ?
SMALL_PRODUCT = 2**20  # terms | up to which a product is small: under a millisecond either way | ?

# --- Kernels in C ---

LANES = 16  # elements | partial results of a row: one or two vectors, which hide the latency of an addition | 2 cores
FEW_LANES = 8  # elements | partial results of a row, where the innermost axis is shorter than LANES | 2 cores
SHORT_ROWS = 5  # elements | of a row, from which 16 rows are transposed and computed side by side | 2 cores
CALLING_ROWS = 48  # elements | of a row, from which only rows that call costly functions once are transposed | 2 cores
ONCE_FOLDED = 28  # elements | of a row that is folded once, up to which 16 rows are transposed | 2 cores
LONG_ROWS = 64  # elements | of a row, up to which rows are transposed, or their last elements share a vector | -
MASKED_ROWS = 48  # elements | of a row, from which its loops end where a mask hides the rest | 2 cores
RUNNING_ROWS = 4  # rows | of running sums side by side: one waits for each addition, and 8 are slower | 2 cores
MOST_PIECES = 64  # pieces | with loops of their own, into which guards cut one axis | 2 cores
FEW_CHOICES = 3  # values | among which a point chooses; with more, pieces of one element are faster, too | 2 cores
MOST_CUT = 64  # pieces | into which all axes before the last are cut together | 2 cores
FEWEST_TURNS = 4  # turns | of a loop over neighbours with different remainders, from which it is worth its text | -
MOST_WRITTEN = 15  # results | of a short last axis that are written out where remainders matter | -
PIECE_GRAIN = 4096  # points | of one axis alone that a thread takes at a time, where it has pieces | -
INLINED_CALLS = 8  # calls | of functions with short forms; beyond that, compilers do not inline long forms | 2 cores
LONG_CALL = 8  # cost | of a function, from which a row's last elements share a vector: for relu it is no gain | 2 cores
HELD_ROW = 4096  # elements | costly values of a row that are kept for its stores: half of a first cache | 2 cores
PAIRED = 8  # rows | of one array, and columns of the other, from which pairs of them are computed by columns | 2 cores
PAIRED_WIDTH = 64  # columns | that are transposed and computed at once | 2 cores
PAIRED_SUMS = 128  # results | that are summed at once, in registers | 2 cores
PAIRED_ROWS = 64  # rows | of a part, which transposes the columns for itself | 2 cores
LONGEST_PAIRED = 256  # elements | of rows whose pairs are computed so: their columns stay in a near cache | 2 cores
COLUMNS = 1024  # elements | partial results of a block of columns: they stay in the nearest cache | 2 cores
FEWEST_COLUMNS = 64  # columns | of a block, where several threads share the columns | ?
COLUMNS_GRAIN = 2**19  # points | of a block of columns worth a thread of its own | 2 cores
C_GRAIN = 32768  # points | worth a thread of their own: a few microseconds | ?
C_PARTS = 64  # parts | of one call: bits of a word, and more than threads, so that none waits long for the last | ?
NEAR = 4  # elements | from one window to the next, up to which vectors hold elements of neighbouring windows | 2 cores
SHORT_WINDOW = 32  # elements | of a window's row, up to which vectors hold neighbouring windows | 2 cores
SHORT_COLUMNS = 8  # columns | from which a loop over columns is faster | 2 cores
FEW_PRODUCTS = 1  # products | a result that sums more of them is worth a call: two take 0.8 times as long | ?
PRODUCT_GRAIN = 2**20  # products | of two numbers worth a thread of their own: some microseconds | ?
PRODUCT_STORE = 16  # products | of two numbers that take as long as storing a result | 2 cores
PRODUCT_SHORT = 32  # terms | of a sum, up to which a row of tiles is stored at once, as memory lies | 2 cores
PRODUCT_LINED = 8  # terms | of a sum, up to which a tile's rows begin at one place in a line of the cache | 2 cores
PRODUCT_PARTS = 16  # parts | of one product | ?
PRODUCT_SIDE = 96  # rows, columns | of a part: with fewer, packing the other operand once more takes too long | 2 cores
IN_PLACE = 2**16  # elements | from a product's first row of k to its last, up to which nothing is packed | 2 cores
RIGHT_IN_PLACE = 2**18  # elements | the same of the right operand of few rows, which whole vectors read | 2 cores
PRODUCT_STACK = 4  # products | in a stack that are split between threads | ?
SPANNED_ROWS = 16  # rows | of a product, up to which the elements between its columns are computed, too | 2 cores
STACKED = 4096  # elements | that an operand spans, if vectors hold one element of each of several products | 2 cores
STACKED_TERMS = 512  # terms | of a sum, up to which vectors hold several products: longer sums are split into parts | -
STACKED_COLUMNS = 64  # columns | for each term: transposing more takes longer than it saves | 2 cores
STACKED_ROWS = 3  # rows | of a product, up to which they do: with four it takes 1.07 times as long | 2 cores
STACKED_RUN = 4  # columns | that must be neighbours for it: with fewer, sums wait for each addition | -
STACKED_SIDE = 6  # rows, columns, terms | of products, up to which they do where both operands lie in memory | 2 cores
STACKED_FILL = 0.6  # share | of the lanes of all vectors that must have a product | -
LYING_ROWS = 3.5  # rows | times the empty share of vectors, up to which columns are not packed | 2 cores
LYING = 0.7  # share | of their vectors that columns fill, from which they are not packed | 2 cores
C_SOURCE = 12_000  # characters | of C that compile as fast as the engine | ?
C_SOURCES = 4  # sources | compiled side by side | ?

# --- Kernels in NumPy ---

SHORT_AXIS = 3  # points | of an axis, up to which it is written out | 2 cores
WHOLE_FOLD = 16  # points | of a fold, up to which all of it is written out | 2 cores
UNROLLED = 16  # expressions | that writing out may make of one expression | 2 cores
WORTH_UNROLLING = 4096  # points | of a kernel, from which more calls take less time than short rows | 2 cores
UNROLLED_ROWS = 64  # results | for each point of a fold, from which the fold is written out | 2 cores
C_UNROLLED_ROWS = 32  # results | of a fold that is written out in C, where vectors hold elements of many rows | 2 cores

# --- Memory and host ---

TEMP_ALIGN = 32  # elements | temporaries begin on a cache line | ?
LITTLE_TEMP = 16  # times | smaller than an array, a temporary shares the first | ?
TEMP_ARRAYS = 3  # arrays | of temporaries: a fourth takes 3 % more memory to part the last 4 % of values | ?
HANDED_OVER_FROM = 500  # us | of a forward, from which its caller, who waits, leaves it to the worker | 2 cores
DRAW_CHUNK = 1 << 14  # values | drawn at a time: larger arrays would get fresh pages for every operation | 2 cores
DRAW_IN_C = 1 << 20  # values | from which looking for a C compiler is worth its time | ?
DRAW_THREADS = 4  # threads | that draw | ?
POOL_FROM = 1 << 16  # bytes | of a copy from which its memory is used again | ?
POOL_BYTES = 32 << 20  # bytes | of one size that are kept, or POOL_PIECES | ?
POOL_PIECES = 12  # copies | of a size: as many as are queued and under way where steps are long | ?
QUEUED_BYTES = 8 << 20  # bytes | of inputs that wait for a session that computes at once | 2 cores
POOL_SIZES = 16  # sizes | of copies whose memory is kept: calls that choose their sizes can have any number | -
POOL_LOOKS = 4  # copies | that are looked at before another is made: the oldest is the first to be free | ?

# --- Batches of runs ---

MAX_IN_FLIGHT = 8  # runs | queued before `step` waits; where runs are short, as many as may be under way | -
AHEAD = 3  # batches | under way: one that the device computes, one that is sent, one that is filled | -
BATCH_SECONDS = 0.01  # s | that a batch of runs takes | ?
RUNS_AT_ONCE = 32  # runs | in one batch: a submission costs the host about three runs of a small model | ?
RING_BYTES = 8 << 20  # bytes | of inputs and outputs that the host writes and reads, unless one run needs more | -
RING_MEMORY = 64 << 20  # bytes | of all arrays of inputs and outputs, also of inputs that a feed writes | -
FED_FROM = 1 << 16  # bytes | of a batch of `fit` from which its examples stay on a GPU | H100
FED_TOTAL = 1 << 28  # bytes | of all batches of such a `fit`: less takes no longer than making the feed | H100
FED_MOST = 1 << 30  # bytes | of all examples that stay on a GPU | -
OUTPUT_GAP = 64  # elements | between outputs that are copied together: a copy costs more than these bytes | ?
INPUT_GAP = 4096  # elements | that no input has, between inputs that are written together: a write costs more | ?
FEW_ELEMENTS = 16  # elements | of an output that the runs of a batch may keep in one array | ?
LARGE_INPUT = 1 << 16  # bytes | from which copying an input once more takes longer than one more write | ?
READ_BYTES = 64 << 20  # bytes | of a piece in which persistent buffers are read | -
COMPILERS = 16  # threads | that compile pipelines | ?
GATHERED_TOGETHER = 1 << 28  # elements | of all parameters up to which FSDP gathers each once a step | H100
GATHERED_APART = 1 << 16  # elements | of a parameter that it gathers for each reader anew in a larger model | ?
SHARED_BY = 32  # readers | of a scalar beyond which XLA computes it once: copies take long to compile | 2 cores
TAB_RUNS = 64  # runs | of one batch in a browser's tab | ?
TAB_SECONDS = 0.1  # s | that such a batch takes at most: browsers give up on devices that seem to hang | -
TAB_BYTES = 1 << 26  # bytes | of inputs or outputs of such a batch | -
OWN_SIZES = 2  # sizes | of a training with programs of their own: whole batches and a last one keep their bits | -
OWN_SIZES_ON_GPU = 8  # sizes | the same on a GPU, where a shared step takes up to 1.9 times as long | H200
ROOM_RUNS = 32  # runs | in a room of a power of two, before a smaller room is compiled | 2 cores
OWN_RUNS = 256  # runs | at one size in a larger room, before this size gets a program of its own | 2 cores
KNOWN_SHAPES = 4096  # shapes of a call's inputs | whose sizes are remembered, in half a kilobyte each | -
SHARED_SIZES = 128  # sizes | kept ready in shared programs: to prepare one again takes as long as a short step | -

# --- Ops at once, and ops made of others ---

KEPT_VALUES = 1 << 14  # elements | of a value, such as a mask, that is computed when the plan is made | -
MOST_PLANS = 4096  # plans | of one op: a loop over ever new shapes must not fill the memory | -
MOST_COMPARED = 0.65  # share | of a window's elements that pooling its rows first may compare | 2 cores
SORT_BLOCK = 512  # elements | of a row that is sorted by counting: each is compared with every other one | 2 cores
SORT_SELECTED = 16  # elements | of the front of a row that are found one after another | 2 cores
SORT_DIRECT = 32  # elements | of a row for each element to find, from which only leading groups are searched | 2 cores
SORT_LINES = 8  # neighbours | in each of these groups | 2 cores
SORT_WHOLE = 128  # elements | of a row that is sorted as a whole, whatever the number of elements to find | 2 cores
SORT_BESIDE = 64  # slots | for all elements that are not chosen: updates of a single slot would wait | 2 cores
SORT_SCATTERED = 2**15  # elements | of an axis up to which the gradient of its sort is a scatter | H100
SORT_LANES = 12  # elements | side by side, from which a long axis before them is sorted by a network | 2 cores
SORT_LONG = 256  # elements | of an axis, from which a network is no slower on llvmpipe with its long launches | 2 cores
SORT_COLUMNS = 16  # columns | into which a network cuts an axis without others beside it: one or two vectors | 2 cores
SORT_TOGETHER = 2  # exchanges | of a sorting network in one kernel; n of them compare 2^n - 1 times | 2 cores
SCAN_BLOCK = 32  # elements | summed up directly; longer axes take one more level for each factor of 32 | ?
SCAN_WRITTEN_OUT = 7  # elements | of an odd axis that the gradient of a running product follows one by one | 2 cores
MAX_MEMBERS = 8  # kernels | of different text that share a launch | -
