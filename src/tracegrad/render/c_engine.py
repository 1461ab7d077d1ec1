"""The C code that runs the functions of a program: a list of calls, each split over the available threads.

Threads take the parts of a call one by one, and so does the caller. Each begins with its own range, the same share of
every call, so that it mostly reads what it wrote. Later it takes parts of other ranges. Where there are more parts than
threads, each thread gets as many. If other work keeps the helper threads from running, the caller does all parts
itself; it waits only for a part that another thread is computing. A result does not depend on the thread that computes
it.
"""

from __future__ import annotations

from tracegrad.render.c_product import PRODUCT

ENGINE = f"""#include <pthread.h>
#include <sched.h>
#include <time.h>
{PRODUCT}
typedef void (*function_)(void **, long, long);
/* end: if not 0, the call is left out where *end <= until */
typedef struct {{ function_ function; void **at; long parts; const int *end; long until; }} call_;

/* The call that is being done, its number of parts, those that nobody has taken, one bit each, and how many are done. A
   thread first takes parts of its own range: they lie in its cache if it did the same range of the call before. */
static const call_ *current;
static long whole, helpers, sleeping;
static unsigned long untaken, done;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER, gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

enum {{ BITS = 8 * sizeof untaken, SPINS = 4000 }}; /* tens of microseconds: the next call of a step comes sooner */

static inline void breathe(void) {{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}}

/* Take a part and do it; 0 if there is none. `current` stays as it is until that part is done. */
static int take(long thread) {{
  for (unsigned long any; (any = __atomic_load_n(&untaken, __ATOMIC_SEQ_CST));) {{
    const long threads = __atomic_load_n(&helpers, __ATOMIC_RELAXED) + 1;
    const long first = __atomic_load_n(&whole, __ATOMIC_SEQ_CST) * thread / threads % BITS;
    const unsigned long near = any >> first << first;
    const long part = near ? __builtin_ctzl(near) : BITS - 1 - __builtin_clzl(any);
    if (!(__atomic_fetch_and(&untaken, ~(1UL << part), __ATOMIC_SEQ_CST) >> part & 1)) continue;
    const call_ *c = __atomic_load_n(&current, __ATOMIC_SEQ_CST);
    c->function(c->at, part, __atomic_load_n(&whole, __ATOMIC_SEQ_CST));
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    return 1;
  }}
  return 0;
}}

static void *help(void *thread) {{
  for (long idle = 0;; idle++) {{
    if (take((long)thread)) idle = 0;
    breathe();
    if (idle < SPINS) continue;
    pthread_mutex_lock(&gate);
    __atomic_add_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&untaken, __ATOMIC_SEQ_CST)) pthread_cond_wait(&more, &gate);
    __atomic_sub_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&gate);
    idle = 0;
  }}
  return 0;
}}

static void start(long threads) {{
  for (pthread_t t; helpers < threads - 1 && !pthread_create(&t, 0, help, (void *)(helpers + 1));
       __atomic_add_fetch(&helpers, 1, __ATOMIC_RELAXED))
    pthread_detach(t);
}}

/* A forked child has only the thread that forked. A lock or condition variable that another thread used stays as it
   was, so the child starts with new ones and without helpers. */
static void forked(void) {{
  busy = gate = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  more = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  helpers = sleeping = 0;
  untaken = done = 0;
}}

__attribute__((constructor)) static void loaded(void) {{ pthread_atfork(0, 0, forked); }}

static void together(const call_ *c) {{
  const long most = min_long(c->parts, BITS), parts = most - (most > helpers ? most % (helpers + 1) : 0);
  __atomic_store_n(&done, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&current, c, __ATOMIC_SEQ_CST);
  __atomic_store_n(&whole, parts, __ATOMIC_SEQ_CST);
  __atomic_store_n(&untaken, ~0UL >> (BITS - parts), __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST)) {{
    pthread_mutex_lock(&gate);
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&gate);
  }}
  while (take(0)) {{}}
  for (long turns = 0; __atomic_load_n(&done, __ATOMIC_SEQ_CST) < (unsigned long)parts; turns++)
    turns < SPINS ? breathe() : (void)sched_yield();
}}

/* A word that follows the size of a run */
typedef struct {{ long *at, value; }} set_;

void run_calls(const set_ *sets, long n_sets, const call_ *calls, long n, long threads) {{
  for (const set_ *s = sets; s < sets + n_sets; s++) *s->at = s->value;
  const int alone = threads < 2 || pthread_mutex_trylock(&busy); /* another session has the helpers */
  if (!alone) start(threads);
  for (const call_ *c = calls; c < calls + n; c++)
    if (c->end && *c->end <= c->until) continue;
    else if (alone || c->parts == 1) for (long k = 0; k < c->parts; k++) c->function(c->at, k, c->parts);
    else together(c);
  if (!alone) pthread_mutex_unlock(&busy);
}}

/* The same for n groups of calls, from one of `ends` to the next. marks: the seconds before and after each */
void time_calls(
    const set_ *sets, long n_sets, const call_ *calls, long threads, const long *ends, long n, double *marks) {{
  struct timespec now;
  for (long k = 0; k <= n; k++) {{
    if (k) run_calls(sets, n_sets, calls + ends[k - 1], ends[k] - ends[k - 1], threads);
    clock_gettime(CLOCK_MONOTONIC, &now);
    marks[k] = now.tv_sec + 1e-9 * now.tv_nsec;
  }}
}}

/* Who may use a session's memory: its own thread, nobody yet, or a caller for the length of one call */
enum {{ SHUT, OPEN, TAKEN }};
typedef struct {{ void *at; long bytes; }} place_;
typedef struct {{ long *at, of, behind; }} pointer_; /* an argument: this far behind the begin of a place */
typedef struct {{
  int *door;
  const set_ *sets;
  long n_sets;
  const call_ *calls;
  long n, threads;
  const pointer_ *pointers;
  long n_pointers, n_in, n_out;
  place_ places[];
}} direct_;

static int pass(int *door, int from, int to) {{
  return __atomic_compare_exchange_n(door, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}}

void open_door(int *door) {{ pass(door, SHUT, OPEN); }}

void shut_door(int *door) {{
  while (!pass(door, OPEN, SHUT) && __atomic_load_n(door, __ATOMIC_SEQ_CST) != SHUT) sched_yield();
}}

/* One argument, because Python takes 0.1 us for each: the run, its inputs' addresses, its outputs'. Bit 62 is set in
   the address of what is used in place. */
#define USED(address) ((long)(address) >> 62)
int run_direct(void *const *given) {{
  const direct_ *d = *given++;
  const place_ *p = d->places, *computed = p + d->n_in, *end = computed + d->n_out;
  if (!pass(d->door, OPEN, TAKEN)) return 0;
  for (const pointer_ *q = d->pointers; q < d->pointers + d->n_pointers; q++)
    *q->at = (USED(given[q->of]) ? (long)given[q->of] - (1L << 62) : (long)p[q->of].at) + q->behind;
  for (; p < computed; p++, given++) if (!USED(*given)) __builtin_memcpy(p->at, *given, p->bytes);
  run_calls(d->sets, d->n_sets, d->calls, d->n, d->threads);
  for (; p < end; p++, given++) if (!USED(*given)) __builtin_memcpy(*given, p->at, p->bytes);
  pass(d->door, TAKEN, OPEN);
  return 1;
}}
"""
