"""Products in C whose right operand overlaps itself in memory, as the windows of an image do.

The element of the right operand at (k, n) is `kb[k] + nb[n]` elements from its first; the element of the left operand
at (m, k) is at `m * step + ka[k]`. If columns are neighbours in memory, tiles read them in place. Otherwise panels are
packed, by rows or by columns. No matrix of windows is ever written out.
"""

from __future__ import annotations

from collections.abc import Callable

from tracegrad.render.c_product import SIZES, TURNED, each_height
from tracegrad.tuning import LANES, LYING_ROWS

FEW = {1: 8, 2: 4, 3: 4}  # rows of a tile -> vectors of columns: so many sums hide the latency of an addition
MOST = max(FEW.values())


def tile(rows: int, vectors: int = 2) -> str:
    """Return the C function of c (+)= a b for `rows` rows of a and some vectors of columns, each at its own offset."""
    pairs = [(i, w) for i in range(rows) for w in range(vectors)]
    sums = [(f"s{i}{w}", f"*(vec *)(c{w} + {i} * row)") for i, w in pairs]
    return "\n".join(
        [
            f"static void lying_{rows}_{vectors}(LYING) {{",
            f"vec {', '.join(f'{s} = {{0}}' for s, _ in sums)};",
            f"const long {', '.join(f'n{w} = from[{w}]' for w in range(vectors))};",
            "for (long p = 0; p < k; p++, a += along) {",
            "const float *at = b + kb[p];",
            '__asm__("" : "+r"(at)); /* GCC would add each pair of offsets first, and run out of registers */',
            *(f"const vec x{w} = *(const vec *)(at + n{w});" for w in range(vectors)),
            *(f"s{i}{w} += a[{i} * step] * x{w};" for i, w in pairs),
            "}",
            f"float {', '.join(f'*c{w} = c + to[{w}]' for w in range(vectors))};",
            f"if (more) {{ {' '.join(f'{s} += {to};' for s, to in sums)} }}",
            *(f"{to} = {s};" for s, to in sums),
            "}",
        ]
    )


def stacked(columns: int) -> str:
    """Return the C function of c = a b for neighbouring columns of VL products: a vector has one element of each."""
    return "\n".join(
        [
            f"static void stacked_{columns}(long k, const vec *a, const vec *b, const long *kb, vec *c) {{",
            f"vec {', '.join(f's{j} = {{0}}' for j in range(columns))};",
            "for (long p = 0; p < k; p++) {",
            "const vec x = a[p], *at = b + kb[p];",
            *(f"s{j} += x * at[{j}];" for j in range(columns)),
            "}",
            *(f"c[{j}] = s{j};" for j in range(columns)),
            "}",
        ]
    )


def each_count(text: Callable[[int], str]) -> str:
    """Return the text for every number of columns that the registers allow."""
    return "\n".join(f"#if VL >= {n}\n{text(n)}\n#endif" for n in range(1, 17))


GATHERED = f"""{SIZES}
#define LYING long k, const float *a, long step, long along, const float *b, const long *from, const long *kb, \\
  float *c, const long *to, long row, long more
{each_height(tile)}
{chr(10).join(tile(*few) for few in FEW.items())}
static void (*const lying[MR + 1])(LYING) = {{
{each_height(lambda h: f"[{h}] = lying_{h}_2,")}
}};
static void (*const lying_few[])(LYING) = {{{", ".join(f"[{h}] = lying_{h}_{w}" for h, w in FEW.items())}}};
static const long few[] = {{{", ".join(f"[{h}] = {w}" for h, w in FEW.items())}}};
enum {{ MOST = {MOST}, LANES = {LANES} }};
static const long beside[] = {{{", ".join(f"{w} * VL" for w in range(MOST))}}}; /* vectors one behind the other */

{each_count(stacked)}
static void (*const stacked[VL + 1])(long, const vec *, const vec *, const long *, vec *) = {{
{each_count(lambda n: f"[{n}] = stacked_{n},")}
}};

enum {{ LYING_COLUMNS, PACKED_COLUMNS, TURNED_ROWS, STACKED }}; /* how the right operand is read */
typedef struct {{
  long batch, m, n, k;
  float *pa, *pb, *pc;
  const long *offsets;                   /* of a, b and c, for each of the batch */
  long step, row;                        /* from row to row of a and of c */
  const long *ka, *kb, *nb;              /* where each k and each column lies */
  const long *ka_runs, *kb_runs, *nb_runs; /* how many from each on are neighbours in memory */
  long how, across;                      /* so many blocks of columns are done apart */
  tile_ *const (*tiles)[2];              /* the engine's: to compile them once more takes as long as the rest */
  long reach;                            /* elements of b from the first to the last of one product */
  long along;                            /* from each k to the next in a; 0 if it varies */
  const int *end;                        /* if it is given, only so many columns count */
  const int *terms;                      /* if it is given, only so many k of each period count */
  long period, times;                    /* and so many times as many */
}} gathered_;

/* Where the k of a block lie, and how many from each on are neighbours */
typedef struct {{ const long *a, *b, *a_runs, *b_runs; }} terms_;

/* Terms [first, first + n) of those that count: the first `end` of each period. `lists` has memory for them. */
static terms_ terms_of(const gathered_ *g, long first, long n, long end, long (*lists)[KC]) {{
  if (end == g->period) return (terms_){{g->ka + first, g->kb + first, g->ka_runs + first, g->kb_runs + first}};
  for (long p = 0, q = first % end, at = first / end * g->period; p < n; p++) {{
    lists[0][p] = g->ka[at + q], lists[1][p] = g->kb[at + q];
    lists[2][p] = min_long(g->ka_runs[at + q], end - q), lists[3][p] = min_long(g->kb_runs[at + q], end - q);
    if (++q == end) q = 0, at += g->period;
  }}
  return (terms_){{lists[0], lists[1], lists[2], lists[3]}};
}}

/* Some rows as columns: to[p * width + l] = from[l][at[p]] for l < n <= VL. Writes VL values for each p. */
static void turn_gathered(float *to, const float *const *from, long n, const long *at, const long *runs, long k,
                          long width) {{
  for (long p = 0, count; p < k; p += count) {{
    count = min_long(min_long(runs[p], k - p), VL);
    if (count < 3) {{
      for (long q = p; q < p + count; q++)
        for (long l = 0; l < n; l++) to[q * width + l] = from[l][at[q]];
      continue;
    }}
    vec x[VL], y[VL];
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++) x[l] = l < n ? *(const vec *)(from[l] + at[p]) : (vec){{0}};
{TURNED}
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++)
      if (l < count) *(vec *)(to + (p + l) * width) = x[l];
  }}
}}

/* n rows that begin at from + at_row[l], or l * step apart */
static OPAQUE void turn_rows(float *to, const float *from, const long *at_row, long step, long n, const long *at,
                             const long *runs, long k, long width) {{
  const float *rows[VL];
  for (long l = (n - 1) / VL * VL; l >= 0; l -= VL) {{ /* the last ones first, as in `pack` */
    const long some = min_long(VL, n - l);
    for (long r = 0; r < some; r++) rows[r] = from + (at_row ? at_row[l + r] : (l + r) * step);
    turn_gathered(to + l, rows, some, at, runs, k, width);
  }}
}}

/* n columns, by runs of neighbours: whole vectors, of which what comes behind is written later */
static OPAQUE void pack_columns(float *to, const float *from, const long *at, const long *runs, long n, const long *kb,
                                long k, long width) {{
  for (long p = 0; p < k; p++)
    for (long l = 0; l < n; l += min_long(runs[l], VL))
      *(vec *)(to + p * width + l) = *(const vec *)(from + kb[p] + at[l]);
}}

/* Vectors of columns [begin, end): where each lies, its first column, and how many of its columns count. */
typedef struct {{ long begin, end, n, from[NC + MOST], to[NC + MOST], counts[NC + MOST]; }} vectors_;

/* Find the vectors from a column on, as many as there is room for; each has neighbours in memory if it must lie there.
   Behind them the last one is repeated, without columns. */
static void find_vectors(vectors_ *v, const gathered_ *g, long begin, long last) {{
  if (v->begin == begin && v->end > begin && v->end <= last) return;
  long j = v->begin = begin;
  for (v->n = 0; j < last && v->n < (g->how == LYING_COLUMNS ? NC : NC / VL); v->n++) {{
    const long count = min_long(min_long(VL, last - j), g->how == LYING_COLUMNS ? g->nb_runs[j] : VL);
    v->from[v->n] = g->nb[j], v->to[v->n] = j, v->counts[v->n] = count, j += count;
  }}
  v->end = j;
  for (long w = 0; w < MOST; w++) v->from[v->n + w] = v->from[v->n - 1], v->counts[v->n + w] = 0;
}}

/* True if a tile can write whole vectors. What a first block writes behind a run, later tiles write again. */
static int are_whole(const vectors_ *v, long t, long n, long first) {{
  if (t + n > v->n || (first && v->to[t + n - 1] + VL <= v->end)) return t + n <= v->n;
  for (long w = t; w < t + n; w++)
    if (v->counts[w] < VL) return 0;
  return 1;
}}

static void gathered_part(const gathered_ *g, const float *a, const float *b, float *c, const vectors_ *v) {{
  float edge[MR * NR];
  int heights[MC]; /* of the tiles of a chunk */
  long lists[4][KC];
  const long count = g->terms ? before_end(g->terms, g->times, g->period) : g->period;
  const long all = count < g->period ? g->k / g->period * count : g->k, in_turn = all == g->k;
  const long chunks = (g->m + MC - 1) / MC, blocks = (all + KC - 1) / KC, lies = g->how == LYING_COLUMNS;
  const long direct = in_turn && (g->step == 1 ? g->along : g->ka_runs[0] >= g->k && (g->step % APART || g->m == 1));
  const long most = lies && g->m < (long)(sizeof few / sizeof *few) ? few[g->m] : 2;
  for (long block = 0; block < blocks; block++) {{
    const long pc = all * block / blocks, kc = all * (block + 1) / blocks - pc;
    const terms_ k = terms_of(g, pc, kc, count, lists);
    for (long j = v->begin; j < v->end && !lies; j += NR) {{
      const long n = min_long(NR, v->end - j), width = n > VL ? NR : VL;
      float *to = packed_b + (j - v->begin) * kc;
      if (g->how == PACKED_COLUMNS) pack_columns(to, b, g->nb + j, g->nb_runs + j, n, k.b, kc, width);
      else turn_rows(to, b, g->nb + j, 0, n, k.b, k.b_runs, kc, width);
    }}
    for (long chunk = 0; chunk < chunks; chunk++) {{
      const long top = g->m * chunk / chunks, rows = g->m * (chunk + 1) / chunks - top;
      const float *above = a + top * g->step;
      int *h = heights;
      for (long x = 0; x < rows; x += *h++) {{
        *h = height(rows - x);
        if (!direct)
          turn_rows(packed_a + x * kc, above + x * g->step, 0, g->step, *h, k.a, k.a_runs, kc, *h);
      }}
      for (long t = 0; t < v->n; t += most) {{
        const long wide = t + 1 < v->n, n = lies || wide ? most : 1, whole = are_whole(v, t, n, lies && !block);
        const long *to = whole ? v->to + t : beside, row = whole ? g->row : n * VL, more = whole && block > 0;
        h = heights;
        for (long x = 0; x < rows; x += *h++) {{
          const float *left = direct ? above + x * g->step + k.a[0] : packed_a + x * kc;
          const long step = direct ? g->step : 1, along = direct ? g->along : *h;
          float *under = c + (top + x) * g->row, *out = whole ? under : edge;
          if (lies) (most > 2 ? lying_few : lying)[*h](kc, left, step, along, b, v->from + t, k.b, out, to, row, more);
          else g->tiles[*h][wide](kc, left, step, along, packed_b + t * VL * kc, n * VL, out + *to, row, VL, more);
          for (long r = 0; r < *h && !whole; r++)
            for (long w = 0; w < n; w++)
              for (long y = 0; y < v->counts[t + w]; y++) {{
                float *one = under + r * g->row + v->to[t + w] + y;
                *one = (block ? *one : 0.0f) + edge[r * row + w * VL + y];
              }}
        }}
      }}
    }}
  }}
}}

/* to[p * VL + l] = from[l][p] for p < n, or from[l][p] = to[p * VL + l] for l < some */
static OPAQUE void turn_stack(float *to, float *const *from, long n, long some, int back) {{
  for (long p = 0; n < VL && p < n; p++)
    for (long l = 0; l < some; l++)
      if (back) from[l][p] = to[p * VL + l];
      else to[p * VL + l] = from[l][p];
  for (long q = 0; n >= VL && q < n; q += VL) {{
    const long p = min_long(q, n - VL); /* the last ones once more, where they are no whole vector */
    vec x[VL], y[VL];
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++) x[l] = *(const vec *)(back ? to + (p + l) * VL : from[l] + p);
{TURNED}
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++)
      if (!back) *(vec *)(to + (p + l) * VL) = x[l];
      else if (l < some) *(vec *)(from[l] + p) = x[l];
  }}
}}

/* Products [first, first + some) of the batch, some <= VL. Other lanes repeat the first one. */
static void stacked_part(const gathered_ *g, long first, long some) {{
  float *rows[VL], *left = packed_a, *out = packed_a + g->k * VL;
  const long *o = g->offsets + 3 * first;
  for (long l = 0; l < VL; l++) rows[l] = g->pb + o[l < some ? 3 * l + 1 : 1];
  turn_stack(packed_b, rows, g->reach, VL, 0);
  for (long i = 0; i < g->m; i++) {{
    for (long l = 0; l < VL; l++) rows[l] = g->pa + o[l < some ? 3 * l : 0] + i * g->step;
    turn_gathered(left, (const float *const *)rows, VL, g->ka, g->ka_runs, g->k, VL);
    for (long j = 0, n; j < g->n; j += n) {{
      const long run = g->nb_runs[j], tiles = (run + VL - 1) / VL;
      n = (run + tiles - 1) / tiles;
      stacked[n](g->k, (const vec *)left, (const vec *)packed_b + g->nb[j], g->kb, (vec *)out + j);
    }}
    for (long l = 0; l < some; l++) rows[l] = g->pc + o[3 * l + 2] + i * g->row;
    turn_stack(out, rows, g->n, some, 1);
  }}
}}

/* True if n columns are read where they lie, because vectors that cover runs of them have little empty space. Tiles
   read two vectors at a time. */
static int lies(const gathered_ *g, long n) {{
  long filled = 0;
  for (long j = 0, run; j < n; j += run) {{
    run = min_long(g->nb_runs[j], n - j);
    filled += (run + LANES - 1) / LANES * LANES;
  }}
  return n > LANES && g->m * (filled - n) <= {LYING_ROWS} * filled;
}}

/* A part is a range of blocks of columns, of all of the batch, or of VL products of it. */
void gathered(void **at, long part, long parts) {{
  const gathered_ *g = (const gathered_ *)at;
  if (g->how == STACKED) {{
    const long blocks = (g->batch + VL - 1) / VL;
    for (long i = blocks * part / parts; i < blocks * (part + 1) / parts; i++)
      stacked_part(g, i * VL, min_long(VL, g->batch - i * VL));
    return;
  }}
  const long n = g->end ? min_long(g->n, *g->end) : g->n;
  gathered_ here = *g;
  if (lies(g, n)) here.how = LYING_COLUMNS;
  const long unit = here.how == LYING_COLUMNS ? 1 : NR;
  const long all = g->batch * g->across, units = (n + unit - 1) / unit;
  vectors_ v;
  v.begin = v.end = 0;
  for (long i = all * part / parts; i < all * (part + 1) / parts; i++) {{
    const long *o = g->offsets + 3 * (i / g->across), x = i % g->across;
    const long end = min_long(units * (x + 1) / g->across * unit, n);
    for (long j = units * x / g->across * unit; j < end; j = v.end) {{
      find_vectors(&v, &here, j, end);
      gathered_part(&here, g->pa + o[0], g->pb + o[1], g->pc + o[2], &v);
    }}
  }}
}}
"""
