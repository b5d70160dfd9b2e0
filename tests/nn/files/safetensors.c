/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <glib/gstdio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static char *
make_folder (void)
{
  g_autoptr (GError) error = NULL;
  char *folder = g_dir_make_tmp ("ebb-safetensors-XXXXXX", &error);

  g_assert_no_error (error);
  return folder;
}

static guint
count_files (const char *folder)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  guint n = 0;

  while (g_dir_read_name (dir) != NULL)
    n++;
  g_dir_close (dir);
  return n;
}

static void
add (EbbArgs *tensors, const char *name, EbbTensor *tensor)
{
  g_assert_nonnull (tensor);
  ebb_args_add_tensor (tensors, name, tensor);
  ebb_tensor_unref (tensor);
}

static EbbArgs *
make_tensors (void)
{
  EbbArgs *tensors = ebb_args_new (EBB_ARGS_DICT);
  const gint64 shape[] = { 2, 3 }, empty[] = { 3, 0, 2 };
  static const EbbDType dtypes[] = { EBB_DTYPE_U8, EBB_DTYPE_F32, EBB_DTYPE_BOOL, EBB_DTYPE_BF16,
                                     EBB_DTYPE_I64, EBB_DTYPE_F16, EBB_DTYPE_I32 };

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (EbbTensor) random = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, NULL);
      g_autoptr (EbbTensor) large = ebb_mul_scalar (random, 100, NULL);
      g_autoptr (EbbTensor) positive = ebb_abs (large, NULL);

      add (tensors, ebb_dtype_get_name (dtypes[i]), ebb_cast (positive, dtypes[i], NULL));
    }
  add (tensors, "scalar \"quoted\" \\ é\n\x01", ebb_scalar (1.5, EBB_DTYPE_F32, NULL, NULL));
  add (tensors, "empty", ebb_zeros (empty, 3, EBB_DTYPE_F32, NULL, NULL));
  return tensors;
}

static void
assert_equal (EbbArgs *a, EbbArgs *b)
{
  g_assert_cmpuint (ebb_args_get_length (a), ==, ebb_args_get_length (b));
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    {
      int other = ebb_args_find (b, ebb_args_get_key (a, i));
      g_autoptr (EbbTensor) x = ebb_args_get_tensor (a, i);
      g_autoptr (EbbTensor) y = NULL;

      g_assert_cmpint (other, >=, 0);
      y = ebb_args_get_tensor (b, (guint) other);
      g_assert_true (ebb_tensor_equal (x, y));
    }
}

static void
every_dtype_comes_back (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "all.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (EbbArgs) loaded_metadata = NULL;
  g_autoptr (GError) error = NULL;

  ebb_args_add_string (metadata, "format", "pt");
  ebb_args_add_string (metadata, "a \"key\"", "a\nvalue\t\\ é \x7f");
  ebb_save_safetensors (path, tensors, metadata, &error);
  g_assert_no_error (error);
  loaded = ebb_load_safetensors_full (path, &loaded_metadata, &error);
  g_assert_no_error (error);
  assert_equal (tensors, loaded);
  g_assert_cmpuint (ebb_args_get_length (loaded_metadata), ==, 2);
  g_assert_cmpstr (ebb_args_get_string (loaded_metadata, 0), ==, "pt");
  g_assert_cmpstr (ebb_args_get_key (loaded_metadata, 1), ==, "a \"key\"");
  g_assert_cmpstr (ebb_args_get_string (loaded_metadata, 1), ==, "a\nvalue\t\\ é \x7f");
  g_assert_cmpuint (count_files (folder), ==, 1);
  g_remove (path);
  g_rmdir (folder);
}

static void
views_are_saved_as_they_look (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "view.safetensors", NULL);
  const gint64 shape[] = { 4, 6 };
  g_autoptr (EbbTensor) whole = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, NULL);
  g_autoptr (EbbTensor) turned = ebb_transpose (whole, 0, 1, NULL);
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (GError) error = NULL;

  ebb_args_add_tensor (tensors, "turned", turned);
  add (tensors, "part", ebb_narrow (turned, 0, 1, 3, NULL));
  ebb_save_safetensors (path, tensors, NULL, &error);
  loaded = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  assert_equal (tensors, loaded);
  g_remove (path);
  g_rmdir (folder);
}

/* TRUE if @address lies in a mapping of @path. */
static gboolean
is_mapped (guint64 address, const char *path)
{
  g_autofree char *maps = NULL;
  g_auto (GStrv) lines = NULL;

  g_assert_true (g_file_get_contents ("/proc/self/maps", &maps, NULL, NULL));
  lines = g_strsplit (maps, "\n", -1);
  for (guint i = 0; lines[i] != NULL; i++)
    {
      unsigned long long begin, end;

      if (sscanf (lines[i], "%llx-%llx", &begin, &end) == 2 && address >= begin && address < end)
        return g_str_has_suffix (lines[i], path);
    }
  return FALSE;
}

static void
tensors_share_the_mapping (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "mapped.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (EbbArgs) again = NULL;
  g_autoptr (GError) error = NULL;

  ebb_save_safetensors (path, tensors, NULL, &error);
  loaded = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < ebb_args_get_length (loaded); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (loaded, i);

      if (ebb_tensor_get_n_elements (tensor) == 0)
        continue;
      g_assert_true (is_mapped ((guint64) (gsize) ebb_tensor_get_data (tensor, NULL), path));
      /* Changes stay private. */
      g_assert_true (ebb_tensor_fill (tensor, 1, &error));
    }
  again = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  assert_equal (tensors, again);
  g_remove (path);
  g_rmdir (folder);
}

static void
a_file_may_be_saved_over_itself (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "self.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (EbbArgs) again = NULL;
  g_autoptr (GError) error = NULL;

  ebb_save_safetensors (path, tensors, NULL, &error);
  loaded = ebb_load_safetensors (path, &error);
  ebb_save_safetensors (path, loaded, NULL, &error);
  again = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  assert_equal (tensors, again);
  assert_equal (tensors, loaded);
  g_remove (path);
  g_rmdir (folder);
}

static void
pytorch_files_load (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "op-casts.safetensors", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) loaded = ebb_load_safetensors (path, &error);
  g_autoptr (EbbTensor) bf16 = NULL;

  g_assert_no_error (error);
  bf16 = ebb_args_get_tensor (loaded, (guint) ebb_args_find (loaded, "cast.bf16"));
  g_assert_cmpint (ebb_tensor_get_dtype (bf16), ==, EBB_DTYPE_BF16);
}

/* -- hostile files ------------------------------------------------------------------------------------------------- */

static void
write_file (const char *path, const char *header, gint64 length, gsize n_data)
{
  g_autoptr (GByteArray) bytes = g_byte_array_new ();
  guint64 size = GUINT64_TO_LE (length < 0 ? (guint64) strlen (header) : (guint64) length);
  g_autofree guint8 *data = g_malloc0 (n_data + 1);

  memset (data, 7, n_data);
  g_byte_array_append (bytes, (const guint8 *) &size, 8);
  g_byte_array_append (bytes, (const guint8 *) header, (guint) strlen (header));
  g_byte_array_append (bytes, data, (guint) n_data);
  g_assert_true (g_file_set_contents (path, (const char *) bytes->data, bytes->len, NULL));
}

#define T(dtype, shape, begin, end) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

typedef struct
{
  const char *header;
  gint64 length; /* that the file gives; -1: the right one */
  gsize n_data;
  const char *message; /* part of it */
} BadFile;

static const BadFile bad_files[] = {
  { "", -1, 0, "the header does not begin with '{'" },
  { " {}", -1, 0, "the header does not begin with '{'" },
  { "{}", 3, 0, "truncated: the header has 3 bytes, but the file only 10" },
  { "{}", G_MAXINT64, 0, "a header of 9223372036854775807 bytes: it must have 100000000 at most" },
  { "{}", 100000001, 0, "a header of 100000001 bytes" },
  { "{}", 0x0000001404034b50, 0, "a file of torch.save (), not of safetensors: write it in PyTorch by " },
  { "{}", 0x46fc6c0a8a0280, 0, "a file of torch.save (), not of safetensors: write it in PyTorch by " },
  { "{}", 100000000, 0, "truncated" },
  { "{", -1, 0, "expected '\"', found the end" },
  { "{}}", -1, 0, "expected the end, found '}'" },
  { "{}", -1, 1, "the last 1 bytes belong to no tensor" },
  { "{\"a\":" T ("F32", "[1]", 0, 4) ",}", -1, 4, "expected '\"', found '}'" },
  { "{\"a\xc3\":" T ("F32", "[1]", 0, 4) "}", -1, 4, "not UTF-8" },
  { "{\"a\\u0000\":" T ("F32", "[1]", 0, 4) "}", -1, 4, "a string with U+0000" },
  { "{\"a\\ud800\":" T ("F32", "[1]", 0, 4) "}", -1, 4, "half a surrogate pair" },
  { "{\"a\\x\":" T ("F32", "[1]", 0, 4) "}", -1, 4, "no such escape" },
  { "{\"a", -1, 0, "a string without end" },
  { "{\"a\n\":1}", -1, 0, "a control character in a string" },
  { "{\"a\":[1]}", -1, 0, "expected '{', found '['" },
  { "{\"a\":" T ("F32", "[1]", 0, 4) ",\"a\":" T ("F32", "[1]", 4, 8) "}", -1, 8, "the name \"a\" is there twice" },
  { "{\"a\":" T ("F32", "[1]", 0, 4) ",\"\\u0061\":" T ("F32", "[1]", 4, 8) "}", -1, 8, "\"a\" is there twice" },
  { "{\"a\":" T ("F32", "[2]", 0, 8) ",\"b\":" T ("F32", "[2]", 4, 12) "}", -1, 12,
    "the data of tensors \"a\" and \"b\" overlap at byte 4" },
  { "{\"a\":" T ("F32", "[1]", 0, 4) ",\"b\":" T ("F32", "[1]", 0, 4) "}", -1, 4, "overlap at byte 0" },
  { "{\"a\":" T ("F32", "[1]", 0, 4) ",\"b\":" T ("F32", "[1]", 8, 12) "}", -1, 12,
    "bytes 4 to 8 of the data, before tensor \"b\", belong to none" },
  { "{\"a\":" T ("F32", "[1]", 4, 8) "}", -1, 8, "bytes 0 to 4 of the data, before tensor \"a\"" },
  { "{\"a\":" T ("F32", "[1]", 4, 0) "}", -1, 4, "tensor \"a\" begins at 4 and ends before, at 0" },
  { "{\"a\":" T ("F32", "[2]", 0, 8) "}", -1, 4, "truncated: tensor \"a\" ends at 8, but there are 4 bytes" },
  { "{\"a\":" T ("F32", "[1]", 9223372036854775800, 9223372036854775804) "}", -1, 4, "truncated: tensor \"a\"" },
  { "{\"a\":" T ("F32", "[1]", 18446744073709551612, 18446744073709551616) "}", -1, 4, "more than 63 bits" },
  { "{\"a\":" T ("F32", "[3]", 0, 8) "}", -1, 8, "has 8 bytes of data, but its shape and dtype ask for 12" },
  { "{\"a\":" T ("F32", "[4611686018427387904,4]", 0, 4) "}", -1, 4, "more bytes than can be counted" },
  { "{\"a\":" T ("F32", "[9223372036854775807,9223372036854775807]", 0, 4) "}", -1, 4, "more bytes than can be" },
  { "{\"a\":" T ("F32", "[-1]", 0, 4) "}", -1, 4, "expected an integer of 0 or more" },
  { "{\"a\":" T ("F32", "[1.0]", 0, 4) "}", -1, 4, "expected an integer of 0 or more" },
  { "{\"a\":" T ("F32", "[1e0]", 0, 4) "}", -1, 4, "expected an integer of 0 or more" },
  { "{\"a\":" T ("F32", "[01]", 0, 4) "}", -1, 4, "expected an integer of 0 or more" },
  { "{\"a\":" T ("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", -1, 4, "tensor \"a\" has more than 8 dimensions" },
  { "{\"a\":" T ("F32", "1", 0, 4) "}", -1, 4, "expected '[', found '1'" },
  { "{\"a\":" T ("Q7", "[1]", 0, 4) "}", -1, 4, "tensor \"a\" has the dtype \"Q7\", which is unknown" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", -1, 4, "tensor \"a\" has no data_offsets" },
  { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "tensor \"a\" has no dtype" },
  { "{\"a\":{}}", -1, 4, "tensor \"a\" has no dtype" },
  { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4,
    "tensor \"a\" has twice the key \"dtype\"" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", -1, 4,
    "tensor \"a\" has the unknown key \"more\"" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", -1, 4, "expected ']', found ','" },
  { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", -1, 4, "expected ',', found ']'" },
  { "{\"__metadata__\":[]}", -1, 0, "__metadata__ is not an object of strings" },
  { "{\"__metadata__\":{\"a\":1}}", -1, 0, "__metadata__ has \"a\", which is not a string" },
  { "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", -1, 0, "__metadata__ has \"a\" twice" },
  { "{\"__metadata__\":{},\"__metadata__\":{}}", -1, 0, "the name \"__metadata__\" is there twice" },
  { "{\"line\\nbreak\":" T ("BOOL", "[1]", 0, 1) "}", -1, 1, "tensor \"line\\nbreak\" is BOOL and has the byte 7" },
};

static void
hostile_files_are_refused_in_one_line (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "bad.safetensors", NULL);

  for (guint i = 0; i < G_N_ELEMENTS (bad_files); i++)
    {
      g_autoptr (GError) error = NULL;

      write_file (path, bad_files[i].header, bad_files[i].length, bad_files[i].n_data);
      g_assert_null (ebb_load_safetensors (path, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
      g_test_message ("%s", error->message);
      g_assert_true (g_str_has_prefix (error->message, path));
      g_assert_nonnull (strstr (error->message, bad_files[i].message));
      g_assert_null (strchr (error->message, '\n'));
    }
  g_remove (path);
  g_rmdir (folder);
}

static void
every_truncation_is_refused (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "cut.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (GError) error = NULL;
  g_autofree char *contents = NULL;
  gsize size;

  ebb_save_safetensors (path, tensors, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (g_file_get_contents (path, &contents, &size, NULL));
  for (gsize n = 0; n < size; n++)
    {
      g_assert_true (g_file_set_contents (path, contents, (gssize) n, NULL));
      g_assert_null (ebb_load_safetensors (path, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
      g_clear_error (&error);
    }
  g_remove (path);
  g_rmdir (folder);
}

static void
other_dtypes_are_named (void)
{
  static const char *const dtypes[] = { "F64", "I8", "I16", "U16", "U32", "U64", "F8_E4M3" };
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "f64.safetensors", NULL);

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autofree char *header =
          g_strdup_printf ("{\"h.0\":{\"dtype\":\"%s\",\"shape\":[],\"data_offsets\":[0,8]}}", dtypes[i]);
      g_autofree char *message = g_strdup_printf ("tensor \"h.0\" has the dtype %s, which is not supported", dtypes[i]);
      g_autoptr (GError) error = NULL;

      write_file (path, header, -1, 8);
      g_assert_null (ebb_load_safetensors (path, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_DTYPE);
      g_assert_nonnull (strstr (error->message, message));
    }
  g_remove (path);
  g_rmdir (folder);
}

/* The format asks for ranges without gaps, not for any order of names; and misaligned data is copied. */
static void
valid_oddities_are_accepted (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "odd.safetensors", NULL);
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (GError) error = NULL;
  gint64 item;

  write_file (path,
              "{ \"b\" : " T ("I32", "[2]", 1, 9) " ,\t\"a\":" T ("U8", "[1]", 0, 1) ",\"z\":" T (
                  "F32", "[0]", 9, 9) ",\r\n\"__metadata__\":{} }  ",
              -1, 9);
  loaded = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_args_get_length (loaded), ==, 3);
  g_assert_cmpstr (ebb_args_get_key (loaded, 0), ==, "b");
  tensor = ebb_args_get_tensor (loaded, 0);
  g_assert_cmpuint ((gsize) ebb_tensor_get_data (tensor, NULL) % 4, ==, 0);
  tensor = (ebb_tensor_unref (tensor), ebb_args_get_tensor (loaded, 1));
  g_assert_true (ebb_tensor_get_item_int (tensor, &item, &error));
  g_assert_cmpint (item, ==, 7);
  g_remove (path);
  g_rmdir (folder);
}

/* Listed before or after the tensor that has data at its offset. */
static void
an_empty_tensor_may_lie_anywhere (void)
{
#define LISTED(first, second) "{\"a\":" first ",\"b\":" second ",\"c\":" T ("U8", "[1]", 4, 5) "}"
  static const char *const headers[] = {
    LISTED (T ("F32", "[1]", 0, 4), T ("F32", "[0]", 0, 0)),
    LISTED (T ("F32", "[0]", 0, 0), T ("F32", "[1]", 0, 4)),
    LISTED (T ("F32", "[1]", 0, 4), T ("F32", "[0]", 4, 4)),
    LISTED (T ("F32", "[1]", 0, 4), T ("F32", "[0]", 5, 5)),
  };
#undef LISTED
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "empty.safetensors", NULL);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (headers); i++)
    {
      g_autoptr (EbbArgs) loaded = NULL;

      write_file (path, headers[i], -1, 5);
      loaded = ebb_load_safetensors (path, &error);
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_args_get_length (loaded), ==, 3);
    }
  g_remove (path);
  g_rmdir (folder);
}

static void
what_can_not_be_read_is_named (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "none.safetensors", NULL);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_load_safetensors (path, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_true (g_str_has_suffix (error->message, "none.safetensors: No such file or directory"));
  g_clear_error (&error);
  g_assert_null (ebb_load_safetensors (folder, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_true (g_str_has_suffix (error->message, "it is a folder"));
  g_assert_null (ebb_load_safetensors (path, &error)); /* an error set before stays */
  g_assert_true (g_str_has_suffix (error->message, "it is a folder"));
  g_rmdir (folder);
}

/* -- writes that fail ---------------------------------------------------------------------------------------------- */

static void
a_failed_write_leaves_the_old_file_alone (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "old.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (EbbArgs) large = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) loaded = NULL;
  const gint64 shape[] = { 100000 };
  struct rlimit old, small;
  g_autoptr (GError) error = NULL;

  add (large, "large", ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL));
  ebb_save_safetensors (path, tensors, NULL, &error);
  g_assert_no_error (error);

  signal (SIGXFSZ, SIG_IGN);
  getrlimit (RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 10000;
  setrlimit (RLIMIT_FSIZE, &small);
  g_assert_false (ebb_save_safetensors (path, large, NULL, &error));
  setrlimit (RLIMIT_FSIZE, &old);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, "can't write"));
  g_assert_nonnull (strstr (error->message, path));
  g_clear_error (&error);

  g_assert_cmpuint (count_files (folder), ==, 1);
  loaded = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  assert_equal (tensors, loaded);
  g_remove (path);
  g_rmdir (folder);
}

static void
what_can_not_be_written_is_named (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "no-folder", "x.safetensors", NULL);
  g_autofree char *fine = g_build_filename (folder, "x.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autoptr (EbbArgs) reserved = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) numbers = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_save_safetensors (path, tensors, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_true (g_str_has_suffix (error->message, "no-folder/x.safetensors: No such file or directory"));
  g_clear_error (&error);
  g_assert_false (ebb_save_safetensors (folder, tensors, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_clear_error (&error);

  add (reserved, "__metadata__", ebb_scalar (1, EBB_DTYPE_F32, NULL, NULL));
  g_assert_false (ebb_save_safetensors (fine, reserved, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  ebb_args_add_int (numbers, "one", 1);
  g_assert_false (ebb_save_safetensors (fine, numbers, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_false (ebb_save_safetensors (fine, tensors, numbers, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpuint (count_files (folder), ==, 0);
  g_rmdir (folder);
}

static void
the_header_is_aligned (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "aligned.safetensors", NULL);
  g_autoptr (EbbArgs) tensors = make_tensors ();
  g_autofree char *contents = NULL;
  guint64 length;

  g_assert_true (ebb_save_safetensors (path, tensors, NULL, NULL));
  g_assert_true (g_file_get_contents (path, &contents, NULL, NULL));
  memcpy (&length, contents, 8);
  g_assert_cmpuint (GUINT64_FROM_LE (length) % 8, ==, 0);
  g_remove (path);
  g_rmdir (folder);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/safetensors/every-dtype-comes-back", every_dtype_comes_back);
  g_test_add_func ("/safetensors/views-are-saved-as-they-look", views_are_saved_as_they_look);
  g_test_add_func ("/safetensors/tensors-share-the-mapping", tensors_share_the_mapping);
  g_test_add_func ("/safetensors/a-file-may-be-saved-over-itself", a_file_may_be_saved_over_itself);
  g_test_add_func ("/safetensors/pytorch-files-load", pytorch_files_load);
  g_test_add_func ("/safetensors/hostile-files-are-refused-in-one-line", hostile_files_are_refused_in_one_line);
  g_test_add_func ("/safetensors/every-truncation-is-refused", every_truncation_is_refused);
  g_test_add_func ("/safetensors/other-dtypes-are-named", other_dtypes_are_named);
  g_test_add_func ("/safetensors/valid-oddities-are-accepted", valid_oddities_are_accepted);
  g_test_add_func ("/safetensors/an-empty-tensor-may-lie-anywhere", an_empty_tensor_may_lie_anywhere);
  g_test_add_func ("/safetensors/what-can-not-be-read-is-named", what_can_not_be_read_is_named);
  g_test_add_func ("/safetensors/a-failed-write-leaves-the-old-file-alone", a_failed_write_leaves_the_old_file_alone);
  g_test_add_func ("/safetensors/what-can-not-be-written-is-named", what_can_not_be_written_is_named);
  g_test_add_func ("/safetensors/the-header-is-aligned", the_header_is_aligned);
  return g_test_run ();
}
