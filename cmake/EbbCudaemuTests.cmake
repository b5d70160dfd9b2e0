# Tests of many processes on the emulated GPU, which they share, with collectives over the stand-in for NCCL: label
# cudaemu. They are the programs of tests/dist/group and tests/mpi.
set (EBB_CUDAEMU_LAUNCH "${tests_dir}/cudaemu/nccl/launch")
set (nccl_environment OMP_NUM_THREADS=1 EBB_PROCESS_GROUP_TIMEOUT=60 EBB_TEST_DEVICE=cudaemu
  "EBB_BACKEND_PATH=${EBB_CUDAEMU_MODULES}:${EBB_BACKENDS_DIR}")

# Runs a program's target as so many ranks, once for each number in the list: nccl-NAME-RANKS. What follows may be
# "long".
function (ebb_add_nccl_test name program ranks)
  foreach (n IN LISTS ranks)
    set (test nccl-${name}-${n})
    set (label cudaemu)
    set (long)
    if ("long" IN_LIST ARGN)
      set (label "cudaemu;long")
      set (long EBB_TEST_IS_LONG=1)
    endif ()
    add_test (NAME ${test} COMMAND "${EBB_CUDAEMU_LAUNCH}" ${n} $<TARGET_FILE:${program}>)
    ebb_set_test_properties (${test} "${label}" 600 ${long} ${nccl_environment})
    set_tests_properties (${test} PROPERTIES PROCESSORS 2)
    add_dependencies (${program} ebb-process-group-nccl-on-cudaemu ebb-backend-cudaemu)
  endforeach ()
endfunction ()

if (EBB_CUDAEMU)
  # It starts its own jobs: they are meant to fail.
  add_test (NAME nccl-faults COMMAND test-dist-group-nccl-faults)
  ebb_set_test_properties (nccl-faults cudaemu 180 "EBB_NCCL_LAUNCH=${EBB_CUDAEMU_LAUNCH}" ${nccl_environment})
  ebb_add_nccl_test (collectives test-dist-group-nccl "2;4")
  ebb_add_nccl_test (training test-dist-group-nccl-training "1;2")
  if (EBB_MPI)
    # Started by mpirun, ranks compare their calls over MPI.
    add_test (NAME nccl-beside-mpi-2 COMMAND "${EBB_MPI_LAUNCH}" 2 $<TARGET_FILE:test-dist-group-nccl>)
    ebb_set_test_properties (nccl-beside-mpi-2 "cudaemu;mpi" 180 ${mpi_environment} ${nccl_environment})
    set_tests_properties (nccl-beside-mpi-2 PROPERTIES PROCESSORS 2)
    ebb_add_nccl_test (partitioned-store test-mpi-partitioned-store 2)
    ebb_add_nccl_test (partitioned-store test-mpi-partitioned-store 4 long)
    ebb_add_nccl_test (parallel test-mpi-parallel "2;4" long)
    ebb_add_nccl_test (fully-shard test-mpi-fully-shard 2 long)
  endif ()
endif ()
foreach (name IN ITEMS train-gpt fsdp-gpt examples)
  if (TEST script-${name}-cudaemu)
    set_property (TEST script-${name}-cudaemu APPEND PROPERTY LABELS cudaemu)
  endif ()
endforeach ()
