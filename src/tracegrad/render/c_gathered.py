"""Products in C whose right operand overlaps itself in memory, as the windows of an image do.

The element of the right operand at (k, n) is `kb[k] + nb[n]` elements from its first; the element of the left operand
at (m, k) is at `m * step + ka[k]`. If columns are neighbours in memory, tiles read them in place. Otherwise panels are
packed, by rows or by columns. No matrix of windows is ever written out.
"""

from __future__ import annotations

from tracegrad.render.c_product import SIZES, each_height


def tile(rows: int) -> str:
    """Return c (+)= a b for `rows` rows of a and two vectors of columns, each at its own offset."""
    sums = [(f"s{i}{w}", f"*(vec *)(c{w} + {i} * row)") for i in range(rows) for w in (0, 1)]
    add = [f"s{i}{w} += a[{i} * step] * b{w};" for i in range(rows) for w in (0, 1)]
    return "\n".join(
        [
            f"static void lying_{rows}(LYING) {{",
            f"vec {', '.join(f'{s} = {{0}}' for s, _ in sums)};",
            "for (long p = 0; p < k; p++, a += along) {",
            *(f"const vec b{w} = *(const vec *)(at{w} + kb[p]);" for w in (0, 1)),
            *add,
            "}",
            f"if (more) {{ {' '.join(f'{s} += {to};' for s, to in sums)} }}",
            *(f"{to} = {s};" for s, to in sums),
            "}",
        ]
    )


GATHERED = f"""{SIZES}
#define LYING long k, const float *a, long step, long along, const float *at0, const float *at1, const long *kb, \\
  float *c0, float *c1, long row, long more
{each_height(tile)}
static void (*const lying[MR + 1])(LYING) = {{
{each_height(lambda h: f"[{h}] = lying_{h},")}
}};

enum {{ LYING_COLUMNS, PACKED_COLUMNS, TURNED_ROWS }}; /* how the right operand is read */
typedef struct {{
  long batch, m, n, k;
  float *pa, *pb, *pc;
  const long *offsets;                   /* of a, b and c, for each of the batch */
  long step, row;                        /* from row to row of a and of c */
  const long *ka, *kb, *nb;              /* where each k and each column lies */
  const long *ka_runs, *kb_runs, *nb_runs; /* how many from each on are neighbours in memory */
  long how, across;                      /* so many blocks of columns are done apart */
  tile_ *const (*tiles)[2];              /* the engine's: to compile them once more takes as long as the rest */
}} gathered_;

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
#pragma GCC unroll 4
    for (int half = VL / 2; half; half /= 2) {{
#pragma GCC unroll 8
      for (int l = 0; l < VL / 2; l++) {{
        y[2 * l] = SHUFFLE(x[l], x[l + VL / 2], ZIP_LOW);
        y[2 * l + 1] = SHUFFLE(x[l], x[l + VL / 2], ZIP_HIGH);
      }}
#pragma GCC unroll 16
      for (int l = 0; l < VL; l++) x[l] = y[l];
    }}
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

static void gathered_part(const gathered_ *g, const float *a, const float *b, float *c, long from, long end) {{
  float edge[MR * NR];
  const long chunks = (g->m + MC - 1) / MC, blocks = (g->k + KC - 1) / KC, lies = g->how == LYING_COLUMNS;
  const long direct = g->ka_runs[0] == g->k && (g->step % APART || g->m == 1);
  for (long block = 0; block < blocks; block++) {{
    const long pc = g->k * block / blocks, kc = g->k * (block + 1) / blocks - pc;
    const long *kb = g->kb + pc;
    for (long j = from; j < end && !lies; j += NR) {{
      const long n = min_long(NR, end - j), width = n > VL ? NR : VL;
      float *to = packed_b + (j - from) * kc;
      if (g->how == PACKED_COLUMNS) pack_columns(to, b, g->nb + j, g->nb_runs + j, n, kb, kc, width);
      else turn_rows(to, b, g->nb + j, 0, n, kb, g->kb_runs + pc, kc, width);
    }}
    for (long chunk = 0; chunk < chunks; chunk++) {{
      const long top = g->m * chunk / chunks, rows = g->m * (chunk + 1) / chunks - top;
      const float *above = a + top * g->step;
      for (long x = 0, h; x < rows && !direct; x += h) {{
        h = height(rows - x);
        turn_rows(packed_a + x * kc, above + x * g->step, 0, g->step, h, g->ka + pc, g->ka_runs + pc, kc, h);
      }}
      for (long j = from, next; j < end; j = next) {{
        long n0, n1;
        if (lies) {{
          n0 = min_long(min_long(VL, g->nb_runs[j]), end - j);
          n1 = j + n0 < end ? min_long(min_long(VL, g->nb_runs[j + n0]), end - j - n0) : 0;
        }} else n0 = min_long(VL, end - j), n1 = min_long(VL, end - j - n0);
        next = j + n0 + n1;
        const long wide = n1 > 0, whole = n0 == VL && (n1 == VL || (!wide && !lies));
        const float *at0 = b + g->nb[j], *at1 = wide ? b + g->nb[j + n0] : at0; /* a lone vector is done twice */
        for (long x = 0, h; x < rows; x += h) {{
          h = height(rows - x);
          const float *left = direct ? above + x * g->step + g->ka[pc] : packed_a + x * kc;
          const long step = direct ? g->step : 1, along = direct ? 1 : h;
          float *to = c + (top + x) * g->row + j, *first = whole ? to : edge, *second = whole ? to + VL : edge + VL;
          const long row = whole ? g->row : NR, more = whole && block > 0;
          if (lies) lying[h](kc, left, step, along, at0, at1, kb, first, second, row, more);
          else g->tiles[h][wide](kc, left, step, along, packed_b + (j - from) * kc, wide ? NR : VL, first, row, more);
          if (whole) continue;
          for (long r = 0; r < h; r++) {{
            for (long y = 0; y < n0; y++) to[r * g->row + y] = (block ? to[r * g->row + y] : 0.0f) + edge[r * NR + y];
            for (long y = 0; y < n1; y++)
              to[r * g->row + n0 + y] = (block ? to[r * g->row + n0 + y] : 0.0f) + edge[r * NR + VL + y];
          }}
        }}
      }}
    }}
  }}
}}

/* A part is a range of blocks of columns, of all of the batch. */
void gathered(void **at, long part, long parts) {{
  const gathered_ *g = (const gathered_ *)at;
  const long all = g->batch * g->across;
  for (long i = all * part / parts; i < all * (part + 1) / parts; i++) {{
    const long *o = g->offsets + 3 * (i / g->across), x = i % g->across;
    const long from = g->n * x / g->across, end = g->n * (x + 1) / g->across;
    for (long j = from; j < end; j += NC)
      gathered_part(g, g->pa + o[0], g->pb + o[1], g->pc + o[2], j, min_long(end, j + NC));
  }}
}}
"""
