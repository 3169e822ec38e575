/* Counts the requests to CPython's allocators of objects and of memory with the GIL.

   allocations.py builds and loads this. Python's headers are not needed: what is declared here is a
   part of the C API that has not changed since 3.5. */

#include <stddef.h>

typedef struct {
    void *context;
    void *(*malloc)(void *context, size_t size);
    void *(*calloc)(void *context, size_t count, size_t size);
    void *(*realloc)(void *context, void *block, size_t size);
    void (*free)(void *context, void *block);
} Allocator;

extern void PyMem_GetAllocator(int domain, Allocator *allocator);
extern void PyMem_SetAllocator(int domain, Allocator *allocator);

enum { FIRST = 1, LAST = 2 }; /* PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ: both need the GIL */

static Allocator originals[LAST + 1];
static long requests;

static void *counted_malloc(void *context, size_t size)
{
    Allocator *original = context;
    requests++;
    return original->malloc(original->context, size);
}

static void *counted_calloc(void *context, size_t count, size_t size)
{
    Allocator *original = context;
    requests++;
    return original->calloc(original->context, count, size);
}

static void *counted_realloc(void *context, void *block, size_t size)
{
    Allocator *original = context;
    requests++;
    return original->realloc(original->context, block, size);
}

static void passed_free(void *context, void *block)
{
    Allocator *original = context;
    original->free(original->context, block);
}

void begin(void)
{
    requests = 0;
    for (int domain = FIRST; domain <= LAST; domain++) {
        Allocator counting = {
            &originals[domain], counted_malloc, counted_calloc, counted_realloc, passed_free,
        };
        PyMem_GetAllocator(domain, &originals[domain]);
        PyMem_SetAllocator(domain, &counting);
    }
}

long end(void)
{
    for (int domain = FIRST; domain <= LAST; domain++)
        PyMem_SetAllocator(domain, &originals[domain]);
    return requests;
}
