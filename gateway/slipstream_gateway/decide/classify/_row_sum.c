/* The sum of the table's rows over the features of one text, in one pass: what `hashing.features` and
 * `LinearClassifier._sum` compute with NumPy. All hashes are modulo 2**32, as there. */

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { COLUMNS = 16, RUN_BYTES = 4, WIDE_BYTES = 3, WORDS_FROM = 1 << 15, PAIRS_FROM = WORDS_FROM + (1 << 16) };
enum { TABLE_ROWS = PAIRS_FROM + (1 << 16) };
static const uint32_t BASE = 0x9E3779B1u, RUN_MIX = 0x85EBCA6Bu, WORD_MIX = 0x9E6C63D1u, PAIR_MIX = 0xC2B2AE35u;

typedef struct {
  const float *table; /* (TABLE_ROWS, COLUMNS) */
  uint32_t *seen;     /* (TABLE_ROWS,): the stamp of the text that had a row last */
  uint32_t stamp;
  float total[COLUMNS];
  long count;
  uint32_t previous; /* the hash of the word before */
  int has_previous;
} Sum;

/* A row counts once. */
static inline void add(Sum *sum, uint32_t row) {
  if (sum->seen[row] == sum->stamp) return;
  sum->seen[row] = sum->stamp;
  sum->count++;
  const float *weights = sum->table + (size_t)row * COLUMNS;
  for (int column = 0; column < COLUMNS; column++) sum->total[column] += weights[column];
}

/* The word with the hash `word`, and its pair with the word before. */
static inline void add_word(Sum *sum, uint32_t word) {
  word *= WORD_MIX;
  add(sum, WORDS_FROM + (word >> 16));
  if (sum->has_previous) add(sum, PAIRS_FROM + ((sum->previous * PAIR_MIX + word) >> 16));
  sum->previous = word;
  sum->has_previous = 1;
}

/* Whether a whole character of a script without spaces begins at `i`: its words are pairs of characters. */
static inline int is_wide(const uint8_t *data, Py_ssize_t size, Py_ssize_t i) {
  if (i + WIDE_BYTES >= size) return 0;
  return (data[i] >= 0xE3 && data[i] <= 0xED) || (data[i] == 0xE0 && data[i + 1] >= 0xB8 && data[i + 1] <= 0xBB);
}

static inline uint32_t hash(const uint8_t *data, int size, const uint32_t *values) {
  uint32_t sum = 0;
  while (size--) sum = sum * BASE + values[data[size]];
  return sum;
}

static void add_all(Sum *sum, const uint8_t *data, Py_ssize_t size, const uint32_t *values, const uint8_t *in_word) {
  uint32_t word = 0, power = 1;
  int is_inside = 0;
  Py_ssize_t wide_end = 0; /* of the last character without spaces */
  for (Py_ssize_t i = 0; i < size; i++) {
    const int wide = is_wide(data, size, i);
    if (i + RUN_BYTES <= size) add(sum, (hash(data + i, RUN_BYTES, values) * RUN_MIX) >> 17);
    if (!wide && i >= wide_end && in_word[data[i]]) {
      if (!is_inside) word = 0, power = 1, is_inside = 1;
      word += values[data[i]] * power;
      power *= BASE;
    } else if (is_inside) {
      is_inside = 0;
      add_word(sum, word);
    }
    if (wide) {
      const int is_paired = is_wide(data, size, i + WIDE_BYTES);
      if (is_paired || !i || wide_end != i) add_word(sum, hash(data + i, (1 + is_paired) * WIDE_BYTES, values));
      wide_end = i + WIDE_BYTES;
    }
  }
}

static int get(PyObject *from, Py_buffer *view, int flags, Py_ssize_t bytes, const char *name) {
  if (PyObject_GetBuffer(from, view, flags)) return 0;
  if (view->len == bytes) return 1;
  PyErr_Format(PyExc_ValueError, "%s has %zd bytes, not %zd", name, view->len, bytes);
  PyBuffer_Release(view);
  return 0;
}

PyDoc_STRVAR(row_sum_doc,
             "row_sum(data, values, in_word, table, seen, stamp, total)\n--\n\n"
             "Writes the sum of the rows of `table` (float32, TABLE_ROWS x 16) over the features of `data` to `total`\n"
             "(float32, 16), and returns the number of features.\n\n"
             "`values` (uint32, 256) and `in_word` (256 bytes) describe bytes. `seen` (uint32, TABLE_ROWS) is kept\n"
             "between calls, each of which has another `stamp`. Raises ValueError for other sizes.");

static PyObject *row_sum(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
  static const char *const names[] = {"data", "values", "in_word", "table", "seen", "total"};
  static const int at[] = {0, 1, 2, 3, 4, 6};
  if (count != 7) return PyErr_Format(PyExc_TypeError, "row_sum expected 7 arguments, got %zd", count);
  Sum sum = {.stamp = (uint32_t)PyLong_AsUnsignedLongMask(args[5])};
  if (PyErr_Occurred()) return NULL;
  Py_buffer views[6];
  const Py_ssize_t sizes[] = {-1, 4 * 256, 256, 4 * TABLE_ROWS * COLUMNS, 4 * TABLE_ROWS, 4 * COLUMNS};
  PyObject *result = NULL;
  int held = 0;
  for (; held < 6; held++) {
    const int flags = held < 4 ? PyBUF_SIMPLE : PyBUF_WRITABLE;
    if (held == 0 ? PyObject_GetBuffer(args[0], &views[0], flags)
                  : !get(args[at[held]], &views[held], flags, sizes[held], names[held]))
      goto end;
  }
  sum.table = views[3].buf;
  sum.seen = views[4].buf;
  add_all(&sum, views[0].buf, views[0].len, views[1].buf, views[2].buf);
  memcpy(views[5].buf, sum.total, sizeof sum.total);
  result = PyLong_FromLong(sum.count);
end:
  while (held-- > 0) PyBuffer_Release(&views[held]);
  return result;
}

static PyMethodDef methods[] = {
    {"row_sum", (PyCFunction)(void (*)(void))row_sum, METH_FASTCALL, row_sum_doc},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_row_sum", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__row_sum(void) { return PyModuleDef_Init(&definition); }
