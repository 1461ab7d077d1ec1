"""Products in C: packed panels and a tile of results in registers, after Goto and van de Geijn (2008).

NumPy's BLAS chooses its kernels from a list of processors, and falls back to kernels of 2013 on an unknown one: half
the speed where vectors have 512 bits. This code is compiled for the processor in use. The order of a sum depends on
its length alone.

Tiles have many heights, so that they cover the rows evenly without waste: 64 rows are tiles of 14, 14, 12, 12 and 12.
A tile is one or two vectors wide. The left operand is read in place if its rows are contiguous. The right operand is
packed, unless the product has few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations

from tracegrad.kernels.form import Limit
from tracegrad.render.c_text import OPAQUE
from tracegrad.tuning import IN_PLACE, PRODUCT_LINED, PRODUCT_SHORT, RIGHT_IN_PLACE

AHEAD = 6  # rows of a tile, from which it has the time to load what the next tile reads of the right operand
HEIGHTS = (*range(1, 9), 10, 12, 14)  # 14 times two vectors, and three for the operands, take 31 of 32 registers


def left_rows(rows: int) -> tuple[str, list[str], str]:
    """Return C for the left operand of a tile: its pointers, the element of each row, and how the pointers move on.

    A pointer serves five rows: addresses have a register for one step and one for three, and multiples by 2 and 4.
    Otherwise the compiler keeps an offset for each row, which leaves too few registers.
    """
    starts = range(0, rows, 5)
    pointers = f"const float {', '.join(f'*a{i} = a + {i} * step' for i in starts)};"
    elements = [f"a{i - i % 5}[{i % 5} * step]" for i in range(rows)]
    return pointers, elements, ", ".join(f"a{i} += along" for i in starts)


def tile(rows: int, wide: int) -> str:
    """Return the C function of c (+)= a b for some rows of a and one or two vectors of b, unrolled to compile fast."""
    at = ("", " + second")  # of each vector of columns
    sums = [(f"s{i}{w}", f"*(vec *)(c + {i} * row{at[w]})") for i in range(rows) for w in range(wide)]
    pointers, elements, further = left_rows(rows)
    add = [f"s{i}{w} += {x} * b{w};" for i, x in enumerate(elements) for w in range(wide)]
    return "\n".join(
        [
            f"static void tile_{rows}_{wide}(TAKES) {{",
            f"vec {', '.join(f'{s} = {{0}}' for s, _ in sums)};",
            pointers,
            f"const long ahead = next > NR && next % APART ? {wide} * VL : 0; /* what the next tile reads in place */",
            f"for (; k; k--, {further}, b += next) {{",
            *(f"const vec b{w} = *(const vec *)(b{at[w]});" for w in range(wide)),
            *(f"__builtin_prefetch(b + ahead{at[w]});" for w in range(wide) if rows >= AHEAD),
            *add,
            "}",
            f"if (more) {{ {' '.join(f'{s} += {to};' for s, to in sums)} }}",
            *(f"{to} = {s};" for s, to in sums),
            "}",
        ]
    )


def each_height(text: Callable[[int], str]) -> str:
    """Return the text for every height that the registers allow."""
    return "\n".join(f"#if MR >= {h}\n{text(h)}\n#endif" for h in HEIGHTS)


TILES = f"""
{each_height(lambda h: tile(h, 1))}
{each_height(lambda h: tile(h, 2))}
tile_ *const tracegrad_tiles[MR + 1][2] = {{
{each_height(lambda h: f"[{h}] = {{tile_{h}_1, tile_{h}_2}},")}
}};
"""

# Index lists of shuffles that interleave the first halves of two vectors, or their second halves
ZIP = "\n".join(
    f"{'#if' if vl == 16 else '#elif'} VL == {vl}\n"
    + "\n".join(
        f"#define ZIP_{name} {', '.join(f'{k}, {k + vl}' for k in range(first, first + vl // 2))}"
        for name, first in (("LOW", 0), ("HIGH", vl // 2))
    )
    for vl in (16, 8, 4)
)

LIMITS = tuple(f"{low}_{high}" for low, high in permutations("mnk", 2))  # one bit each
LIMIT_BITS = f"enum {{ {', '.join(f'{name} = {1 << bit}' for bit, name in enumerate(LIMITS))} }};"


def limit_bits(limits: Iterable[Limit]) -> int:
    """Return limits as one integer with the bits of `LIMIT_BITS`, for the product's function in C."""
    return sum(1 << LIMITS.index(f"{x.low}_{x.high}") for x in limits)


SIZES = f"""{OPAQUE}
static inline long min_long(long a, long b) {{ return a < b ? a : b; }}
/* How many points of a period count: `times` for each unit of *end, which is taken for at least 1 */
static inline long before_end(const int *end, long times, long period) {{
  return min_long((*end > 1 ? *end : 1) * times, period);
}}
#if defined(__AVX512F__)
#define VL 16
#define MR 14
#elif defined(__AVX__)
#define VL 8
#define MR 6
#else
#define VL 4
#define MR 8
#endif
{ZIP}
#endif
enum {{ NR = 2 * VL, KC = 512, MC = 16 * MR, NC = 512, FEW_ROWS = 4 * MR, APART = 1024, LINED_ROWS = 8 }};
enum {{ IN_PLACE = {IN_PLACE}, RIGHT_IN_PLACE = {RIGHT_IN_PLACE}, SHORT = {PRODUCT_SHORT}, LINED = {PRODUCT_LINED} }};
typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#if defined(__clang__)
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
typedef int lanes __attribute__((vector_size(4 * VL)));
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (lanes){{__VA_ARGS__}})
#endif
static _Thread_local float packed_a[MC * KC + VL] __attribute__((aligned(64)));
static _Thread_local float packed_b[NC * KC + VL] __attribute__((aligned(64)));
/* second: from the first vector of columns to the second, which overlap where a tile has fewer than NR columns */
#define TAKES long k, const float *a, long step, long along, const float *b, long next, float *c, long row, \\
  long second, long more
typedef void tile_(TAKES);

/* Copies the columns of a row that are less than two vectors, in pieces that may overlap */
typedef float half_ __attribute__((vector_size(2 * VL), aligned(4), may_alias));
static inline void columns_of(float *to, const float *from, long n) {{
  if (n >= VL) {{
    const vec x = *(const vec *)from, y = *(const vec *)(from + n - VL);
    *(vec *)to = x, *(vec *)(to + n - VL) = y;
  }} else if (n >= VL / 2) {{
    const half_ x = *(const half_ *)from, y = *(const half_ *)(from + n - VL / 2);
    *(half_ *)to = x, *(half_ *)(to + n - VL / 2) = y;
  }} else
    for (long k = 0; k < n; k++) to[k] = from[k];
}}

/* Of the first of the tiles that share out some rows; those higher than 8 are even. */
static inline int height(int rows) {{
  const int tiles = (rows + MR - 1) / MR, even = (rows + tiles - 1) / tiles;
  return even <= 8 || even % 2 == 0 ? even : tiles > 1 ? even + 1 : even / 2 + 1;
}}
"""

# transposes the square of vectors x in registers, by way of y
TURNED = """#pragma GCC unroll 4
    for (int half = VL / 2; half; half /= 2) {
#pragma GCC unroll 8
      for (int l = 0; l < VL / 2; l++) {
        y[2 * l] = SHUFFLE(x[l], x[l + VL / 2], ZIP_LOW);
        y[2 * l + 1] = SHUFFLE(x[l], x[l + VL / 2], ZIP_HIGH);
      }
#pragma GCC unroll 16
      for (int l = 0; l < VL; l++) x[l] = y[l];
    }"""

PRODUCT = f"""{SIZES}
/* Rows that lie side by side, as columns: to[p * width + l] = from[l * step + p] for l < n <= VL. Writes VL values for
   each p, so what comes behind is written later. */
static OPAQUE void turn(float *to, const float *from, long n, long k, long step, long width) {{
  long p = 0;
  for (; p + VL <= k; p += VL) {{
    vec x[VL], y[VL];
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++) x[l] = l < n ? *(const vec *)(from + l * step + p) : (vec){{0}};
{TURNED}
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++) *(vec *)(to + (p + l) * width) = x[l];
  }}
  for (; p < k; p++)
    for (long l = 0; l < VL; l++) to[p * width + l] = l < n ? from[l * step + p] : 0.0f;
}}

/* n <= width rows (or columns) side by side. What lies beyond them is for results that nobody keeps. */
static OPAQUE void pack(float *to, const float *from, long n, long k, long step, long along, long width) {{
  if (along == 1 && step != 1) {{
    /* the last ones first: where they are no whole vector, they write over what follows */
    for (long l = (n - 1) / VL * VL; l >= 0; l -= VL)
      turn(to + l, from + l * step, min_long(VL, n - l), k, step, width);
    return;
  }}
  /* whole vectors, as long as they end within what is to be read */
  const long over = -n & (VL - 1), last = !over ? k : along > 0 ? k - 1 - (over + along - 1) / along : 0;
  long p = 0;
  for (; step == 1 && p < last; p++)
    for (long l = 0; l < n; l += VL) *(vec *)(to + p * width + l) = *(const vec *)(from + p * along + l);
  for (; p < k; p++)
    for (long l = 0; l < n; l++) to[p * width + l] = from[p * along + l * step];
}}

/* The same for terms [first, first + k) of those that count, which are the first `end` of each `period`. */
static void pack_terms(float *to, const float *from, long n, long first, long k, long step, long along, long width,
                       long end, long period) {{
  for (long now; k; first += now, k -= now, to += now * width) {{
    now = min_long(k, end - first % end);
    pack(to, from + (first / end * period + first % end) * along, n, now, step, along, width);
  }}
}}

{TILES}

typedef struct {{ long row, column; }} steps_;
typedef struct {{
  long batch, m, n, k;
  steps_ a, b;
  long c;
  float *pa, *pb, *pc;
  const long *offsets;
  long limits;
  struct {{ const int *end; long period, times; }} ended[3]; /* m, n and k: which count; see c_steps.py */
}} product_;
/* How many of each period count, and how many in all. Without an end, one period has all. */
static inline long of_period(const product_ *p, int side, long n) {{
  const int *end = p->ended[side].end;
  return end ? before_end(end, p->ended[side].times, p->ended[side].period) : n;
}}
static inline long counted(const product_ *p, int side, long n) {{
  return p->ended[side].end ? n / p->ended[side].period * of_period(p, side, n) : n;
}}
{LIMIT_BITS}

/* Rows [row, row + m) and columns [column, column + n) of a product. Limits leave out tiles of the result, and terms
   of a tile, by blocks of MR rows and NR columns. Blocks lie where they do however a product is split. */
#define LEFT(counted) (m_end < m_period ? m_end - (counted) % m_end : rows) /* of its period */
#define HEIGHT height(min_long(limits ? MR : rows, min_long(rows - x, LEFT(row + top + x))))
#define LIES(counted) (m_end < m_period ? (counted) / m_end * m_period + (counted) % m_end : (counted)) /* in memory */
static void product_one(const product_ *p, const long *o, long row, long m, long column, long n) {{
  float edge[MR * NR];
  const steps_ sa = p->a, sb = p->b;
  const long k = counted(p, 2, p->k), m_end = of_period(p, 0, p->m), k_end = of_period(p, 2, p->k);
  const long m_period = p->ended[0].period, k_period = p->ended[2].period, in_turn = k <= k_end;
  const long limits = p->limits, blocks = (k + KC - 1) / KC;
  /* several tiles of columns with short sums are stored as memory lies */
  const long chunks = (m - 1) / (k <= SHORT && n > NR ? MR : MC) + 1;
  const long tall = (m + chunks * MR - 1) / (chunks * MR) * MR;
  /* Rows shorter than a vector are stored as vectors, where later rows of this call write again what lies behind */
  const int over = p->c < VL && p->c == n && blocks == 1 && !limits && !p->ended[0].end;
  if (limits & n_m) n = min_long(n, row + m + MR - column);
  for (long jc = limits & m_n && row > column ? (row - column) / NR * NR : 0; jc < n; jc += NC) {{
    const long nc = min_long(NC, n - jc);
    for (long block = 0; block < blocks; block++) {{
      const long pc = k * block / blocks, kc = k * (block + 1) / blocks - pc;
      const float *b = p->pb + o[1] + (column + jc) * sb.column;
      const int lies = m <= FEW_ROWS || (m <= MC && sb.row % APART && kc * sb.row <= RIGHT_IN_PLACE);
      const long as_it_lies = sb.column == 1 && lies && in_turn ? nc : 0;
      const int direct = in_turn && (sa.column == 1 ? sa.row % APART : sa.row == 1 && kc * sa.column <= IN_PLACE);
      for (long j = as_it_lies; j < nc; j += NR)
        pack_terms(packed_b + j * kc, b + j * sb.column, min_long(NR, nc - j), pc, kc, sb.column, sb.row,
                   nc - j > VL ? NR : VL, k_end, k_period);
      for (long top = 0; top < m; top += tall) {{
        const long rows = min_long(tall, m - top);
        const float *left_of = p->pa + o[0];
        for (long x = 0, h; x < rows && !direct; x += h) {{
          h = HEIGHT;
          pack_terms(packed_a + x * kc, left_of + LIES(row + top + x) * sa.row, h, pc, kc, sa.row, sa.column, h, k_end,
                     k_period);
        }}
        for (long j = 0; j < nc; j += NR) {{
          const long c = column + jc + j, whole = min_long(NR, nc - j);
          const long next = j < as_it_lies ? sb.row : whole > VL ? NR : VL;
          for (long x = 0, h; x < rows; x += h) {{
            h = HEIGHT;
            const long at = LIES(row + top + x);
            const long r = (row + top + x) / MR * MR, along = direct ? sa.column : h;
            long columns = whole, first = 0, last = kc;
            if ((limits & n_m && c >= r + MR) || (limits & m_n && c + NR <= r)) continue;
            if (limits & n_m && c + VL >= r + MR) columns = min_long(columns, VL);
            if (limits & k_m) last = min_long(last, r + MR - pc);
            if (limits & k_n) last = min_long(last, c + NR - pc);
            if (limits & m_k && r > pc) first = r - pc;
            if (limits & n_k && c > pc + first) first = c - pc;
            if (first >= last && block) continue;
            if (first >= last) first = last;
            const long wide = columns > VL, step = direct ? sa.row : 1, behind = (m - top - x - h) * p->c;
            const int all = columns >= VL || (over && columns + behind >= VL);
            const float *left = (direct ? left_of + at * sa.row + pc * sa.column : packed_a + x * kc) + first * along;
            const float *right = (j < as_it_lies ? b + pc * sb.row + j : packed_b + j * kc) + first * next;
            float *to = p->pc + o[2] + at * p->c + c;
            for (long i = 0; i < h && !all && block; i++) columns_of(edge + i * NR, to + i * p->c, columns);
            tracegrad_tiles[h][wide](last - first, left, step, along, right, next, all ? to : edge, all ? p->c : NR,
                                     columns - VL, block);
            for (long i = 0; i < h && !all; i++) columns_of(to + i * p->c, edge + i * NR, columns);
          }}
        }}
      }}
    }}
  }}
}}

/* A left operand that lies by columns, too far apart to be read in place, would be packed, and few columns of the right
   one do not fill their vectors. So the turned product is computed: there the left operand is the right one, read as it
   lies. Sums have the same order. */
static int turns(const product_ *p) {{
  const long far = min_long(p->k, KC) * p->a.column, ends = p->ended[0].end || p->ended[1].end || p->ended[2].end;
  const long most = p->a.column % APART ? FEW_ROWS : p->a.column % (2 * APART) ? NR : 0; /* lines of a cache collide */
  const int few = p->n <= most && p->n % NR && p->m >= 4 * NR;
  return few && p->a.row == 1 && far > IN_PLACE && !ends && !(p->limits & (m_n | n_m));
}}
static void product_turned(const product_ *p, const long *o, long row, long m) {{
  static _Thread_local float result[FEW_ROWS * NC];
  const long offsets[] = {{o[1], o[0], 0}}, limits = p->limits, n = p->n;
  product_ t = *p;
  t.m = p->n, t.n = p->m, t.c = NC, t.pa = p->pb, t.pb = p->pa;
  t.a = (steps_){{p->b.column, p->b.row}}, t.b = (steps_){{p->a.column, p->a.row}};
  t.limits = (limits & k_m ? k_n : 0) | (limits & m_k ? n_k : 0) | (limits & k_n ? k_m : 0) | (limits & n_k ? m_k : 0);
  /* from a whole block on, because limits leave out terms by blocks, however a product is split */
  for (long first = row / NR * NR, now; first < row + m; first += now) {{
    now = min_long(NC, row + m - first);
    t.pc = result - first;
    product_one(&t, offsets, 0, n, first, now);
    float *to = p->pc + o[2] + first * p->c;
    for (long i = first < row ? row - first : 0; i < now; i++)
      for (long j = 0; j < n; j++) to[i * p->c + j] = result[j * NC + i];
  }}
}}

/* Where sums are so short that storing results takes most of the time, a tile has rows that begin at the same place in
   a line of the cache, if there are enough of them. Behind a first vector, all others are whole lines then. */
static void product_rows(const product_ *p, const long *o, long row, long m, long column, long n) {{
  const long apart = p->c % VL ? VL / (p->c & -p->c) : 1;
  const long few = n < 4 * NR || m < apart * LINED_ROWS;
  if (turns(p)) {{
    product_turned(p, o, row, m);
    return;
  }}
  if (apart == 1 || few || p->k > LINED || p->limits || p->ended[0].end || p->ended[2].end) {{
    product_one(p, o, row, m, column, n);
    return;
  }}
  product_ every = *p;
  every.a.row *= apart, every.c *= apart;
  for (long r = 0; r < apart; r++) {{
    const long first = row + r;
    every.pa = p->pa + first * p->a.row, every.pc = p->pc + first * p->c;
    const long begin = -((long)(every.pc + o[2] + column) / 4) & (VL - 1), rows = (m - r + apart - 1) / apart;
    if (begin) product_one(&every, o, 0, rows, column, VL);
    product_one(&every, o, 0, rows, column + begin, n - begin);
  }}
}}

/* A part is a range of the stack or, of a single product, of the rows or columns of the result. */
void product(void **at, long part, long parts) {{
  const product_ *p = (const product_ *)at;
  const long m = counted(p, 0, p->m), n = counted(p, 1, p->n);
  const long stack = p->batch >= parts, by_row = m >= n, width = by_row ? MR : NR;
  const long whole = stack ? p->batch : ((by_row ? m : n) + width - 1) / width;
  const long first = whole * part / parts, end = whole * (part + 1) / parts;
  for (long i = stack ? first : 0; i < (stack ? end : p->batch); i++) {{
    const long *o = p->offsets + 3 * i;
    long row = 0, rows = m, column = 0, columns = n;
    if (!stack && by_row) row = first * width, rows = min_long(end * width, m) - row;
    if (!stack && !by_row) column = first * width, columns = min_long(end * width, n) - column;
    product_rows(p, o, row, rows, column, columns);
  }}
}}
"""
