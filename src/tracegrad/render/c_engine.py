"""The C code that runs the functions of a program: a list of calls, each split over the available threads.

Threads take the parts of a call one by one, and so does the caller. If other work keeps the helper threads from
running, the caller does all parts itself; it waits only for a part that another thread is computing. A result does not
depend on the thread that computes it.
"""

from __future__ import annotations

from tracegrad.render.c_product import PRODUCT

ENGINE = f"""#include <pthread.h>
#include <sched.h>
#include <time.h>
{PRODUCT}
typedef void (*function_)(void **, long, long);
typedef struct {{ function_ function; void **at; long parts; }} call_;

/* What is being done. A ticket is its number, how many parts it has, and how many were taken: 32, 16 and 16 bits. */
static const call_ *current;
static unsigned long ticket, done;
static long helpers, sleeping;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER, gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;

enum {{ SPINS = 4000 }}; /* tens of microseconds: the next call of a step comes sooner */

static inline void breathe(void) {{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}}

static int left(unsigned long t) {{ return (t & 0xffff) < (t >> 16 & 0xffff); }}

/* Take a part and do it; 0 if there is none */
static int take(void) {{
  unsigned long t = __atomic_load_n(&ticket, __ATOMIC_SEQ_CST);
  while (left(t)) {{
    const call_ *c = __atomic_load_n(&current, __ATOMIC_SEQ_CST);
    if (!__atomic_compare_exchange_n(&ticket, &t, t + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
    c->function(c->at, t & 0xffff, t >> 16 & 0xffff);
    __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
    return 1;
  }}
  return 0;
}}

static void *help(void *nothing) {{
  for (long idle = 0;; idle++) {{
    if (take()) idle = 0;
    breathe();
    if (idle < SPINS) continue;
    pthread_mutex_lock(&gate);
    __atomic_add_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    while (!left(__atomic_load_n(&ticket, __ATOMIC_SEQ_CST))) pthread_cond_wait(&more, &gate);
    __atomic_sub_fetch(&sleeping, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&gate);
    idle = 0;
  }}
  return nothing;
}}

static void start(long threads) {{
  for (pthread_t t; helpers < threads - 1 && !pthread_create(&t, 0, help, 0); helpers++) pthread_detach(t);
}}

/* A forked child has only the thread that forked. A lock or condition variable that another thread used stays as it
   was, so the child starts with new ones and without helpers. */
static void forked(void) {{
  busy = gate = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  more = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
  helpers = sleeping = 0;
  ticket = done = 0;
}}

__attribute__((constructor)) static void loaded(void) {{ pthread_atfork(0, 0, forked); }}

static void together(const call_ *c) {{
  __atomic_store_n(&done, 0, __ATOMIC_SEQ_CST);
  __atomic_store_n(&current, c, __ATOMIC_SEQ_CST);
  __atomic_store_n(&ticket, ((ticket >> 32) + 1) << 32 | (unsigned long)c->parts << 16, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&sleeping, __ATOMIC_SEQ_CST)) {{
    pthread_mutex_lock(&gate);
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&gate);
  }}
  while (take()) {{}}
  for (long turns = 0; __atomic_load_n(&done, __ATOMIC_SEQ_CST) < (unsigned long)c->parts; turns++)
    turns < SPINS ? breathe() : (void)sched_yield();
}}

/* A word that follows the size of a run */
typedef struct {{ long *at, value; }} set_;

void run_calls(const set_ *sets, long n_sets, const call_ *calls, long n, long threads) {{
  for (const set_ *s = sets; s < sets + n_sets; s++) *s->at = s->value;
  const int alone = threads < 2 || pthread_mutex_trylock(&busy); /* another session has the helpers */
  if (!alone) start(threads);
  for (const call_ *c = calls; c < calls + n; c++)
    if (alone || c->parts == 1) for (long k = 0; k < c->parts; k++) c->function(c->at, k, c->parts);
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
typedef struct {{
  int *door;
  const set_ *sets;
  long n_sets;
  const call_ *calls;
  long n, threads, n_in, n_out;
  place_ places[];
}} direct_;

static int pass(int *door, int from, int to) {{
  return __atomic_compare_exchange_n(door, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}}

void open_door(int *door) {{ pass(door, SHUT, OPEN); }}

void shut_door(int *door) {{
  while (!pass(door, OPEN, SHUT) && __atomic_load_n(door, __ATOMIC_SEQ_CST) != SHUT) sched_yield();
}}

/* One argument, because Python takes 0.1 us for each: the run, its inputs' addresses, its outputs' */
int run_direct(void *const *given) {{
  const direct_ *d = *given++;
  const place_ *p = d->places, *computed = p + d->n_in, *end = computed + d->n_out;
  if (!pass(d->door, OPEN, TAKEN)) return 0;
  for (; p < computed; p++) __builtin_memcpy(p->at, *given++, p->bytes);
  run_calls(d->sets, d->n_sets, d->calls, d->n, d->threads);
  for (; p < end; p++) __builtin_memcpy(*given++, p->at, p->bytes);
  pass(d->door, TAKEN, OPEN);
  return 1;
}}
"""
