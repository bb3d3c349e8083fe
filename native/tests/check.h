// What the native tests need of a test framework: checks that name the line and end the process.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iostream>

// Fails the test unless the condition holds.
#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

// Fails the test unless both printable values are equal; shows them.
#define CHECK_EQUAL(actual, expected)                                                                        \
  do {                                                                                                       \
    const auto actual_value = (actual);                                                                      \
    const auto expected_value = (expected);                                                                  \
    if (!(actual_value == expected_value)) {                                                                 \
      std::cerr << __FILE__ << ":" << __LINE__ << ": " << #actual << " is " << actual_value << ", expected " \
                << expected_value << std::endl;                                                              \
      std::exit(1);                                                                                          \
    }                                                                                                        \
  } while (false)
