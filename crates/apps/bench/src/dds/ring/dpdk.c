/*
 * DPDK's ring by the measure of Figure 17: threads push messages of 8 bytes, by ones or by 32, as
 * fast as they can; one thread consumes them and does nothing else. Who finds the ring full lets
 * others run and tries again. The ring lies in ordinary memory and nothing of the environment layer
 * is needed: no huge pages, no privileges.
 *
 * Standard input has a line for each measurement: MODE PRODUCERS BATCH SECONDS, where MODE is `mp`
 * (the default), `rts` or `hts` (its modes for more threads than cores). Each gets a line back:
 * MESSAGES SECONDS HOST_NS DPU_NS, the CPU times of the producers and of the consumer.
 */
#include <pthread.h>
#include <rte_ring.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PLACES 16384
#define PRODUCERS_MAX 64
#define BATCH_MAX 32
#define MESSAGE 7

static struct rte_ring *ring;
static unsigned int batch;
static atomic_int stop;

static uint64_t now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void *produce(void *unused)
{
	void *messages[BATCH_MAX];
	(void)unused;
	for (int n = 0; n < BATCH_MAX; n++)
		messages[n] = (void *)(uintptr_t)MESSAGE;
	while (!atomic_load_explicit(&stop, memory_order_relaxed))
		if (rte_ring_enqueue_bulk(ring, messages, batch, NULL) == 0)
			sched_yield();
	return NULL;
}

/* Takes what there is; how many. */
static unsigned int take(uint64_t *sum)
{
	void *messages[64];
	unsigned int count = rte_ring_dequeue_burst(ring, messages, 64, NULL);
	for (unsigned int n = 0; n < count; n++)
		*sum += (uintptr_t)messages[n];
	if (count == 0)
		sched_yield();
	return count;
}

static int measure(const char *mode, unsigned int producers, double seconds)
{
	unsigned int flags = RING_F_SC_DEQ;
	pthread_t threads[PRODUCERS_MAX];
	uint64_t taken = 0, sum = 0, warm = (uint64_t)(seconds * 1e8), begun;

	if (strcmp(mode, "rts") == 0)
		flags |= RING_F_MP_RTS_ENQ;
	else if (strcmp(mode, "hts") == 0)
		flags |= RING_F_MP_HTS_ENQ;
	if (rte_ring_init(ring, "figure17", PLACES, flags) != 0)
		return -1;
	atomic_store(&stop, 0);
	for (unsigned int n = 0; n < producers; n++)
		if (pthread_create(&threads[n], NULL, produce, NULL) != 0)
			return -1;
	begun = now(CLOCK_MONOTONIC);
	while (now(CLOCK_MONOTONIC) - begun < warm)
		taken += take(&sum);

	uint64_t before = taken, from = now(CLOCK_MONOTONIC), end = from + (uint64_t)(seconds * 1e9);
	uint64_t all = now(CLOCK_PROCESS_CPUTIME_ID), own = now(CLOCK_THREAD_CPUTIME_ID);
	do {
		for (int n = 0; n < 16; n++)
			taken += take(&sum);
	} while (now(CLOCK_MONOTONIC) < end || taken == before);
	own = now(CLOCK_THREAD_CPUTIME_ID) - own;
	all = now(CLOCK_PROCESS_CPUTIME_ID) - all;
	double time = (double)(now(CLOCK_MONOTONIC) - from) / 1e9;
	uint64_t counted = taken - before;

	/* A producer may wait for another that waits for its turn, but never for room. */
	atomic_store(&stop, 1);
	for (unsigned int n = 0; n < producers; n++)
		pthread_join(threads[n], NULL);
	if (sum != taken * MESSAGE)
		return -1;
	printf("%llu %f %llu %llu\n", (unsigned long long)counted, time,
	       (unsigned long long)(all > own ? all - own : 0), (unsigned long long)own);
	fflush(stdout);
	return 0;
}

int main(void)
{
	char mode[8];
	unsigned int producers;
	double seconds;
	size_t bytes = (size_t)rte_ring_get_memsize(PLACES);

	ring = aligned_alloc(RTE_CACHE_LINE_SIZE, (bytes + RTE_CACHE_LINE_SIZE - 1) /
						    RTE_CACHE_LINE_SIZE * RTE_CACHE_LINE_SIZE);
	if (ring == NULL)
		return 1;
	while (scanf("%7s %u %u %lf", mode, &producers, &batch, &seconds) == 4) {
		if (producers > PRODUCERS_MAX || batch > BATCH_MAX || batch == 0)
			return 1;
		if (measure(mode, producers, seconds) != 0)
			return 1;
	}
	return 0;
}
