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

HEIGHTS = (*range(1, 9), 10, 12, 14)  # 14 times two vectors, and three for the operands, take 31 of 32 registers


def tile(rows: int, wide: int) -> str:
    """Return the C function of c (+)= a b for some rows of a and one or two vectors of b, unrolled to compile fast."""
    sums = [(f"s{i}{w}", f"*(vec *)(c + {i} * row + {w} * VL)") for i in range(rows) for w in range(wide)]
    add = [f"s{i}{w} += a[{i} * step] * b{w};" for i in range(rows) for w in range(wide)]
    return "\n".join(
        [
            f"static void tile_{rows}_{wide}(TAKES) {{",
            f"vec {', '.join(f'{s} = {{0}}' for s, _ in sums)};",
            "for (; k; k--, a += along, b += next) {",
            *(f"const vec b{w} = *(const vec *)(b + {w} * VL);" for w in range(wide)),
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
enum {{ NR = 2 * VL, KC = 512, MC = 16 * MR, NC = 512, FEW_ROWS = 4 * MR, APART = 1024 }};
typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
#if defined(__clang__)
#define SHUFFLE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
typedef int lanes __attribute__((vector_size(4 * VL)));
#define SHUFFLE(x, y, ...) __builtin_shuffle(x, y, (lanes){{__VA_ARGS__}})
#endif
static _Thread_local float packed_a[MC * KC + VL] __attribute__((aligned(64)));
static _Thread_local float packed_b[NC * KC + VL] __attribute__((aligned(64)));
#define TAKES long k, const float *a, long step, long along, const float *b, long next, float *c, long row, long more
typedef void tile_(TAKES);

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
static OPAQUE void pack(float *to, const float *from, long n, long k, long step, long along,
                                           long width) {{
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

{TILES}

typedef struct {{ long row, column; }} steps_;

static void product_one(long m, long n, long k, const float *a, steps_ sa, const float *b, steps_ sb, float *c,
                        long row) {{
  float edge[MR * NR];
  const long chunks = (m + MC - 1) / MC, blocks = (k + KC - 1) / KC;
  const long direct = sa.column == 1 && sa.row % APART; /* rows so far apart fall into one set of the nearest cache */
  for (long jc = 0; jc < n; jc += NC) {{
    const long nc = min_long(NC, n - jc);
    for (long block = 0; block < blocks; block++) {{
      const long pc = k * block / blocks, kc = k * (block + 1) / blocks - pc;
      const float *from = b + jc * sb.column + pc * sb.row;
      const long as_it_lies = sb.column == 1 && m <= FEW_ROWS ? nc - nc % NR : 0;
      for (long j = as_it_lies; j < nc; j += NR)
        pack(packed_b + j * kc, from + j * sb.column, min_long(NR, nc - j), kc, sb.column, sb.row,
             nc - j > VL ? NR : VL);
      for (long chunk = 0; chunk < chunks; chunk++) {{
        const long top = m * chunk / chunks, rows = m * (chunk + 1) / chunks - top;
        const float *above = a + top * sa.row + pc * sa.column;
        for (long x = 0, h; x < rows && !direct; x += h) {{
          h = height(rows - x);
          pack(packed_a + x * kc, above + x * sa.row, h, kc, sa.row, sa.column, h);
        }}
        for (long j = 0; j < nc; j += NR) {{
          const long columns = min_long(NR, nc - j), wide = columns > VL;
          const float *right = j < as_it_lies ? from + j : packed_b + j * kc;
          const long next = j < as_it_lies ? sb.row : wide ? NR : VL;
          for (long x = 0, h; x < rows; x += h) {{
            h = height(rows - x);
            const float *left = direct ? above + x * sa.row : packed_a + x * kc;
            const long step = direct ? sa.row : 1, along = direct ? 1 : h;
            float *to = c + (top + x) * row + jc + j;
            if (columns == (wide ? NR : VL)) {{
              tracegrad_tiles[h][wide](kc, left, step, along, right, next, to, row, block > 0);
              continue;
            }}
            tracegrad_tiles[h][wide](kc, left, step, along, right, next, edge, NR, 0);
            for (long r = 0; r < h; r++)
              for (long y = 0; y < columns; y++) to[r * row + y] = (block ? to[r * row + y] : 0.0f) + edge[r * NR + y];
          }}
        }}
      }}
    }}
  }}
}}

typedef struct {{
  long batch, m, n, k;
  steps_ a, b;
  long c;
  float *pa, *pb, *pc;
  const long *offsets;
  long limits;
}} product_;
{LIMIT_BITS}

/* The same of rows [row, row + rows) and some columns, without what limits exclude; by blocks of rows and, where
   limits say something of columns, of columns. Blocks lie where they do however a product is split. */
static void product_within(const product_ *p, const long *o, long row, long rows, long column, long columns) {{
  const long tall = p->limits ? FEW_ROWS : p->m, wide = p->limits & (k_n | n_k) ? FEW_ROWS : p->n;
  for (long r = row, r_end; r < row + rows; r = r_end) {{
    r_end = min_long(row + rows, (r / tall + 1) * tall);
    long c = p->limits & m_n && r > column ? r : column, c_last = column + columns;
    if (p->limits & n_m) c_last = min_long(c_last, r_end);
    for (long c_end; c < c_last; c = c_end) {{
      c_end = min_long(c_last, (c / wide + 1) * wide);
      long begin = 0, end = p->k;
      if (p->limits & k_m) end = min_long(end, r_end);
      if (p->limits & k_n) end = min_long(end, c_end);
      if (p->limits & m_k && r > begin) begin = r;
      if (p->limits & n_k && c > begin) begin = c;
      if (begin >= end) begin = 0, end = 1; /* one term at least: all of them are zeros */
      product_one(r_end - r, c_end - c, end - begin, p->pa + o[0] + r * p->a.row + begin * p->a.column, p->a,
                  p->pb + o[1] + c * p->b.column + begin * p->b.row, p->b, p->pc + o[2] + r * p->c + c, p->c);
    }}
  }}
}}

/* A part is a range of the stack or, of a single product, of the rows or columns of the result. */
void product(void **at, long part, long parts) {{
  const product_ *p = (const product_ *)at;
  const long stack = p->batch >= parts, by_row = p->m >= p->n, width = by_row ? MR : NR;
  const long whole = stack ? p->batch : ((by_row ? p->m : p->n) + width - 1) / width;
  const long first = whole * part / parts, end = whole * (part + 1) / parts;
  for (long i = stack ? first : 0; i < (stack ? end : p->batch); i++) {{
    const long *o = p->offsets + 3 * i;
    long row = 0, rows = p->m, column = 0, columns = p->n;
    if (!stack && by_row) row = first * width, rows = min_long(end * width, p->m) - row;
    if (!stack && !by_row) column = first * width, columns = min_long(end * width, p->n) - column;
    product_within(p, o, row, rows, column, columns);
  }}
}}
"""
