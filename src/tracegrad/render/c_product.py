"""Products in C: packed panels and a tile of results in registers, after Goto and van de Geijn (2008).

NumPy's BLAS chooses its kernels by a list of processors, and takes those of 2013 on one that it does not know: half the
speed where vectors have 512 bits. This is compiled for the processor at hand. The order of a sum depends on its length
alone.
"""

from __future__ import annotations

PRODUCT = """
static inline long min_long(long a, long b) { return a < b ? a : b; }
#if defined(__AVX512F__)
enum { VL = 16, MR = 12 };
#elif defined(__AVX__)
enum { VL = 8, MR = 6 };
#else
enum { VL = 4, MR = 8 };
#endif
enum { NR = 2 * VL, KC = 256, MC = 16 * MR, NC = 1024, FEW_ROWS = 4 * MR };
typedef float vec __attribute__((vector_size(4 * VL), aligned(4), may_alias));
static _Thread_local float packed_a[MC * KC] __attribute__((aligned(64)));
static _Thread_local float packed_b[NC * KC] __attribute__((aligned(64)));

/* width rows (or columns) side by side, zeros beyond those there are */
static inline void pack(float *restrict to, const float *restrict from, long n, long k, long step, long along,
                        int width) {
  for (long i = 0; i < n; i += width, to += width * k) {
    const long w = n - i < width ? n - i : width;
    const float *f = from + i * step;
    if (w < width) {
      for (long p = 0; p < k; p++)
        for (int l = 0; l < width; l++) to[p * width + l] = l < w ? f[l * step + p * along] : 0.0f;
    } else if (step == 1) {
      for (long p = 0; p < k; p++)
        for (int l = 0; l < width; l++) to[p * width + l] = f[l + p * along];
    } else {
      for (long p = 0; p < k; p++)
        for (int l = 0; l < width; l++) to[p * width + l] = f[l * step + p * along];
    }
  }
}

static __attribute__((noinline)) void tile(long k, const float *restrict a, const float *restrict b, long next,
                                           float *restrict c, long row, int more) {
  vec sum[MR][2];
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) sum[i][0] = sum[i][1] = (vec){0};
  for (long p = 0; p < k; p++, a += MR, b += next) {
    const vec left = *(const vec *)b, right = *(const vec *)(b + VL);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      sum[i][0] += a[i] * left;
      sum[i][1] += a[i] * right;
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) {
    vec *to = (vec *)(c + i * row);
    vec *last = (vec *)(c + i * row + VL);
    if (more) sum[i][0] += *to, sum[i][1] += *last;
    *to = sum[i][0];
    *last = sum[i][1];
  }
}

typedef struct { long row, column; } steps_;

static void product_one(long m, long n, long k, const float *a, steps_ sa, const float *b, steps_ sb, float *c,
                        steps_ sc) {
  float edge[MR * NR];
  for (long jc = 0; jc < n; jc += NC) {
    const long nc = min_long(NC, n - jc);
    for (long pc = 0; pc < k; pc += KC) {
      const long kc = min_long(KC, k - pc);
      const float *from = b + jc * sb.column + pc * sb.row;
      const long as_it_lies = sb.column == 1 && m <= FEW_ROWS ? nc - nc % NR : 0;
      pack(packed_b + as_it_lies * kc, from + as_it_lies * sb.column, nc - as_it_lies, kc, sb.column, sb.row, NR);
      for (long ic = 0; ic < m; ic += MC) {
        const long mc = min_long(MC, m - ic);
        pack(packed_a, a + ic * sa.row + pc * sa.column, mc, kc, sa.row, sa.column, MR);
        for (long j = 0; j < nc; j += NR)
          for (long i = 0; i < mc; i += MR) {
            float *to = c + (ic + i) * sc.row + (jc + j) * sc.column;
            const long rows = min_long(MR, mc - i), columns = min_long(NR, nc - j);
            const float *right = j < as_it_lies ? from + j : packed_b + j * kc;
            const long next = j < as_it_lies ? sb.row : NR;
            if (rows == MR && columns == NR && sc.column == 1) {
              tile(kc, packed_a + i * kc, right, next, to, sc.row, pc > 0);
              continue;
            }
            tile(kc, packed_a + i * kc, right, next, edge, NR, 0);
            for (long x = 0; x < rows; x++)
              for (long y = 0; y < columns; y++) {
                float *one = to + x * sc.row + y * sc.column;
                *one = (pc ? *one : 0.0f) + edge[x * NR + y];
              }
          }
      }
    }
  }
}

typedef struct { long batch, m, n, k; steps_ a, b, c; float *pa, *pb, *pc; const long *offsets; } product_;

/* A part is a range of the stack or, of a single product, of the rows or columns of the result. */
void product(void **at, long part, long parts) {
  const product_ *p = (const product_ *)at;
  const long stack = p->batch >= parts, by_row = p->m >= p->n, width = by_row ? MR : NR;
  const long whole = stack ? p->batch : ((by_row ? p->m : p->n) + width - 1) / width;
  const long first = whole * part / parts, end = whole * (part + 1) / parts;
  for (long i = stack ? first : 0; i < (stack ? end : p->batch); i++) {
    const long *o = p->offsets + 3 * i;
    long row = 0, rows = p->m, column = 0, columns = p->n;
    if (!stack && by_row) row = first * width, rows = min_long(end * width, p->m) - row;
    if (!stack && !by_row) column = first * width, columns = min_long(end * width, p->n) - column;
    product_one(rows, columns, p->k, p->pa + o[0] + row * p->a.row, p->a, p->pb + o[1] + column * p->b.column, p->b,
                p->pc + o[2] + row * p->c.row + column * p->c.column, p->c);
  }
}
"""
